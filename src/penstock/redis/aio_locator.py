"""Finds the server that serves a key, asyncio half. The twin is blocking_locator.py."""

from __future__ import annotations

import asyncio

from penstock.errors import ConnectionFailed
from penstock.redis.aio import Connection, connect
from penstock.redis.master_watch import MasterReplaced, MasterWatch, Routes
from penstock.redis.settings import Host
from penstock.redis.topology import Masters
from penstock.runtime.aio import call_in_loop


class _Attempt:
    """A connection that is being opened."""

    def __init__(self) -> None:
        self.scope = asyncio.timeout(None)
        self.is_open = True
        self._loop = asyncio.get_running_loop()

    def abort_from_outside(self) -> None:
        """Stop waiting for it."""
        call_in_loop(self._loop, self._abort)

    def _abort(self) -> None:
        if self.is_open:
            self.scope.reschedule(self._loop.time())


class Locator(Routes):
    """Finds the server that serves a key, and opens connections to it."""

    async def locate(self, key: str) -> Host:
        """Return host and port of the server for the key."""
        if self._watch is None:
            return self._place
        return self._owner(self._fresh(self._watch) or await self._ask(self._watch), key)

    async def masters(self) -> list[Host]:
        """Return every server that serves keys: one, or all masters of a cluster."""
        if self._watch is None:
            return [self._place]
        return sorted((self._fresh(self._watch) or await self._ask(self._watch)).hosts)

    async def _ask(self, watch: MasterWatch) -> Masters:
        refreshed = self._refreshed
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                masters = await asyncio.wrap_future(watch.ask())
        except TimeoutError as error:
            raise watch.directory.not_found([]) from error
        self._answered = refreshed
        return masters

    async def connect(self, host: Host) -> Connection:
        """Open a connection to the server; it is aborted when another server replaces that master."""
        try:
            if self._watch is None:
                return await connect(self._settings, host)
            return await self._connect_to_master(host, self._watch)
        except ConnectionFailed:
            self.refresh()  # another server may have the key by now
            raise

    async def _connect_to_master(self, host: Host, watch: MasterWatch) -> Connection:
        attempt = _Attempt()
        watch.abort_when_replaced(host, attempt)
        try:
            async with attempt.scope:
                connection = await connect(self._settings, host)
        except TimeoutError as error:
            raise MasterReplaced(host) from error
        finally:
            attempt.is_open = False
        try:
            watch.abort_when_replaced(host, connection)
        except ConnectionFailed:
            connection.abort()
            raise
        return connection
