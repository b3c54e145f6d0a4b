"""Reads that wait at the server for tasks: each on a connection of its own, and woken when something else is due."""

from __future__ import annotations

import time

from penstock.errors import GroupLost, PenstockError
from penstock.redis.aio import Command, Connection, Reply
from penstock.redis.blocking_read import connect, wake
from penstock.redis.client import StreamClient
from penstock.tasks.lost_reads import LostReads

_REPLY_MARGIN_S = 2.0


class BlockingReads:
    """Sends reads that block, and keeps the connections for the next ones.

    Guarantees: a read is sent once. One that was cancelled, timed out or broke is a doubt; the server closes the
    connection of one that was cancelled or timed out before anybody looks what it handed out.
    """

    def __init__(self, client: StreamClient, key: str, lost_reads: LostReads) -> None:
        self._client, self._key, self._lost_reads = client, key, lost_reads
        self._idle: list[Connection] = []
        self._blocked: dict[Connection, float] = {}  # reads under way, and until when

    async def read(self, command: Command, timeout_s: float) -> Reply:
        """Send a read that the server answers within the time."""
        connection = None
        try:
            connection = await self._open()
            self._blocked[connection] = time.monotonic() + timeout_s
            reply = await connection.call(*command, timeout_s=timeout_s + _REPLY_MARGIN_S)
        except BaseException as error:
            if not isinstance(error, GroupLost):  # which is answered before anything is handed out
                self._lost_reads.must_sweep = True  # the server may have handed tasks to nobody
            if connection is not None:
                if connection.has_timed_out or not isinstance(error, PenstockError):  # else it has hung up, or answered
                    self._lost_reads.abandoned.add(connection)
                connection.abort()
            if isinstance(error, PenstockError):
                await self._client.leave(connection, error)
            raise
        finally:
            if connection is not None:
                self._blocked.pop(connection, None)
        self._idle.append(connection)
        return reply

    async def _open(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return await connect(self._client, self._key)

    async def wake_beyond(self, due_s: float) -> None:
        """Let reads return now that would wait longer than that."""
        if any(until_s > due_s for until_s in list(self._blocked.values())):
            await self.wake()

    async def wake(self) -> None:
        """Let all reads return now. A hint: a read that is not woken ends by itself a moment later."""
        for connection in list(self._blocked):
            await wake(self._client, self._key, connection)

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().close()
