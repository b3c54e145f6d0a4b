"""Pub/sub messages of one server. They are only hints, because pub/sub loses messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis.asyncio as driver

from penstock.errors import ConnectionLost, PenstockError
from penstock.redis.aio import no_retry
from penstock.redis.master_watch import watch_of
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import driver_error


class Subscription:
    """Messages of the channels that match some patterns, from one server."""

    def __init__(self, settings: ConnectionSettings, host: Host, patterns: Sequence[str]) -> None:
        self._settings, self._host, self._patterns = settings, host, patterns
        self._watch = watch_of(settings)
        self._driver: Any = None
        self._pubsub: Any = None
        self._is_replaced = False  # another server is the master now

    @property
    def is_open(self) -> bool:
        """Whether messages may come."""
        return self._pubsub is not None and not self._is_replaced

    def abort_from_outside(self) -> None:
        """Make next() raise ConnectionLost, from any thread."""
        self._is_replaced = True

    async def open(self) -> None:
        """Subscribe."""
        try:
            self._driver = self._make_driver()
            self._pubsub = self._driver.pubsub(ignore_subscribe_messages=False)
            await self._pubsub.psubscribe(*self._patterns)
            if self._watch is not None:
                self._watch.abort_when_replaced(self._host, self)
            for _ in self._patterns:
                await self._pubsub.get_message(timeout=5.0)  # confirmed: no message is missed from now on
        except Exception as error:
            raise _translated(error, self._host) from error

    def _make_driver(self) -> driver.Redis:
        settings = self._settings
        options = settings.driver_options() | {"retry": no_retry(), "db": settings.db}
        if settings.path:
            return driver.Redis(unix_socket_path=settings.path, **options)
        host, port = self._host
        return driver.Redis(host=host, port=port, ssl=settings.tls, **options, **settings.tls_options)

    async def next(self, timeout_s: float) -> tuple[str, str] | None:
        """Return channel and text of the next message, or None if none arrived in time."""
        if self._is_replaced:
            raise ConnectionLost(f"Redis at {self._host[0]}:{self._host[1]} is no longer a master")
        try:
            message = await self._pubsub.get_message(timeout=timeout_s)
        except Exception as error:
            raise _translated(error, self._host) from error
        if message is None or message["type"] != "pmessage":
            return None
        return _text(message["channel"]), _text(message["data"])

    async def ping(self) -> None:
        """Ping the server; next() skips the reply."""
        try:
            await self._pubsub.ping()
        except Exception as error:
            raise _translated(error, self._host) from error

    async def close(self) -> None:
        """End the subscription."""
        if self._pubsub is not None:
            await self._pubsub.aclose()
            self._pubsub = None
        if self._driver is not None:
            await self._driver.aclose()


def _translated(error: Exception, host: Host) -> PenstockError:
    return error if isinstance(error, PenstockError) else driver_error(error, f"{host[0]}:{host[1]}")


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
