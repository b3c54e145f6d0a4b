"""Reads that wait at the server until something comes, or something else is due."""

from __future__ import annotations

import time

from penstock.errors import PenstockError
from penstock.redis.aio import Reply
from penstock.redis.blocking_read import BlockingRead
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.tasks.lanes import Lane

_REPLY_MARGIN_S = 2.0


class BlockingReads:
    """Any number of reads that block at the same time; their connections are kept for the next ones."""

    def __init__(self, client: StreamClient, key: str) -> None:
        self._client, self._key = client, key
        self._idle: list[BlockingRead] = []
        self._broken: list[BlockingRead] = []  # whose last read may be on its way still
        self._blocked: dict[BlockingRead, float] = {}  # reads under way, and until when
        self._due_s: dict[Lane | None, float] = {}  # when a waiting task of a lane is due; None = a scheduled one

    async def read(self, command: Command, timeout_s: float, hands_out: bool = True) -> Reply:
        """Send a read, once, that the server answers within the time; `hands_out`: whether it takes messages."""
        try:
            read = self._idle.pop()
        except IndexError:
            read = BlockingRead(self._client, self._key)
        self._blocked[read] = time.monotonic() + timeout_s
        try:
            reply = await read.call(command, timeout_s + _REPLY_MARGIN_S)
        except BaseException as error:
            if hands_out:
                self._broken.append(read)
            if isinstance(error, PenstockError):
                await self._client.leave(read.connection, error)
            raise
        finally:
            del self._blocked[read]
        self._idle.append(read)
        return reply

    async def kill_abandoned(self) -> None:
        """End abandoned reads: only then can it be checked what they have handed out."""
        while self._broken:
            await self._broken.pop().kill_abandoned()

    async def wake(self) -> None:
        """Let all reads return now. A hint: a read that is not woken ends by itself a moment later."""
        for read in list(self._blocked):
            await read.wake()

    # --- what is due --------------------------------------------------------------------------------

    def note_due(self, lane: Lane | None, wait_ms: int) -> None:
        """Take note of when the next waiting task of a lane is due, as the server says; -1 = there is none."""
        if wait_ms < 0:
            self._due_s.pop(lane, None)
        else:
            self._due_s[lane] = time.monotonic() + wait_ms / 1000

    async def due_soon(self, lane: Lane | None, delay_s: float) -> None:
        """Take note that a task will be due, and let no read wait longer than that."""
        due_s = time.monotonic() + delay_s
        self._due_s[lane] = min(self._due_s.get(lane, float("inf")), due_s)
        if any(until_s > due_s for until_s in list(self._blocked.values())):
            await self.wake()

    def is_due(self, lane: Lane | None) -> bool:
        """Return whether a waiting task of the lane is due; None = a scheduled one."""
        return self._due_s.get(lane, float("inf")) <= time.monotonic()

    def until_due_s(self) -> float:
        """Return for how long nothing is due."""
        return max(0.001, min(self._due_s.values(), default=float("inf")) - time.monotonic())

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().close()
