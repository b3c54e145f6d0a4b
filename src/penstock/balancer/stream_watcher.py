"""Waits for entries of many data streams at once: one connection for all that a process owns."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.redis.aio import Command, Connection
from penstock.redis.client import StreamClient
from penstock.runtime.aio import Event

_BLOCK_MS = 100  # who begins to wait joins the next round
_REPLY_MARGIN_S = 5.0
_ROUND = 2_000  # streams of one round


class StreamWatcher:
    """Wakes whoever waits for a stream when it has something new. A cluster is asked stream by stream instead."""

    def __init__(self, client: StreamClient) -> None:
        self._client = client
        self._waiting: dict[str, tuple[str, Event]] = {}
        self._changed, self._stopping = Event(), Event()
        self._connection: Connection | None = None

    def stop(self) -> None:
        """Let run() end."""
        self._stopping.set()
        self._changed.set()

    async def wait(self, key: str, after: str, wake: Event, timeout_s: float) -> None:
        """Wait until the stream has an entry after the given one, the event is set, or the time is over."""
        if self._client.is_cluster:
            await self._wait_alone(key, after, timeout_s)
            return
        self._waiting[key] = (after, wake)
        self._changed.set()
        await wake.wait(timeout_s)
        self._waiting.pop(key, None)

    async def _wait_alone(self, key: str, after: str, timeout_s: float) -> None:
        connection = await self._client.dedicated(key)
        try:
            command = ("XREAD", "COUNT", 1, "BLOCK", max(1, int(timeout_s * 1000)), "STREAMS", key, after)
            await connection.call(*command, timeout_s=timeout_s + _REPLY_MARGIN_S)
        finally:
            connection.abort()

    async def run(self) -> None:
        """Watch until stop()."""
        while not self._stopping.is_set():
            waiting = list(self._waiting.items())[:_ROUND]
            if not waiting:
                self._changed.clear()
                if not self._waiting:
                    await self._changed.wait(_BLOCK_MS / 1000)
                continue
            try:
                ready = await self._watch([key for key, _ in waiting], [after for _, (after, _) in waiting])
            except PenstockError:
                # Whoever waits reads for himself and meets the error: it may be of one stream alone.
                ready = [key for key, _ in waiting]
                await self._stopping.wait(_BLOCK_MS / 1000)
            for key in ready:
                found = self._waiting.pop(key, None)
                if found is not None:
                    found[1].set()
        if self._connection is not None:
            self._connection.abort()

    async def _watch(self, keys: list[str], after: list[str]) -> list[str]:
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await self._client.dedicated(keys[0])
        command: Command = ("XREAD", "COUNT", 1, "BLOCK", _BLOCK_MS, "STREAMS", *keys, *after)
        try:
            reply = await connection.call(*command, timeout_s=_BLOCK_MS / 1000 + _REPLY_MARGIN_S)
        except BaseException:
            connection.abort()
            raise
        return [row[0].decode() for row in reply or ()]
