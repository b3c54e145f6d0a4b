"""BlockingRead: a connection for reads that wait at the server until an entry arrives or they are woken."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from penstock.config import usual_heartbeat_ms
from penstock.errors import PenstockError
from penstock.redis.aio import Connection, OnReply, Reply
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.redis.settings import Host
from penstock.redis.translate import Redirected

_TRIES = 3
_LATE_HEARTBEATS = 2.5
_MARGIN_INTERVALS = 1.5  # the next renewal comes up to one interval after the reply, and takes a while
_MIN_WAIT_S = 0.001


def late_after_s(lease_s: float, interval_s: float) -> float:
    """Return how long after its command a reply that hands out leases is late, if they are renewed at an interval.

    A reply that is not late leaves time for the first renewal.
    """
    usual_s = usual_heartbeat_ms(int(lease_s * 1000)) / 1000
    return min(_LATE_HEARTBEATS * usual_s, lease_s - _MARGIN_INTERVALS * interval_s)


def longest_wait_s(late_s: float) -> float:
    """Return how long a read of leased messages may wait at the server, so that a usual reply is not late."""
    return max(_MIN_WAIT_S, late_s * 4 / 5)


def is_late(sent_s: float, late_s: float) -> bool:
    """Return whether the reply to a command sent at `sent_s` came too late to trust the leases in it.

    The server may have replied at once. If the event loop was blocked or the process suspended since then, nobody
    renewed these leases, and other consumers may have the messages.
    """
    return time.monotonic() - sent_s > late_s


class BlockingRead:
    """One read at a time from the server of a key.

    Guarantees: a read is sent once. A cancelled or timed-out read may still be executed, and its reply is lost; after
    kill_abandoned() it no longer can be, so that a check then finds everything that it delivered.
    """

    def __init__(self, client: StreamClient, key: str) -> None:
        self._client, self._key = client, key
        self.connection: Connection | None = None
        self.ask_host: Host | None = None  # the node to ask instead, while the slot of the key is being moved
        self.is_under_way = False
        self.sent_s = 0.0  # when the last read was sent
        self._received = 0  # bytes, before that
        self._abandoned: Connection | None = None  # its last read may still be in transit

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that has not broken."""
        return self.connection is not None and self.connection.is_open

    @property
    def reply_bytes(self) -> int:
        """How many bytes have arrived since the last read was sent."""
        return self.connection.received - self._received if self.connection is not None else 0

    async def open(self, *along: Command) -> None:
        """Connect to the server of the key, or to the one that an ASK reply named; send `along` in the same write."""
        ask_host, self.ask_host = self.ask_host, None
        connection = await self._client.dedicated(self._key, ask_host)
        try:
            number = (await connection.pipeline([("CLIENT", "ID"), *along]))[0]
        except BaseException:
            connection.abort()
            raise
        connection.client_id = number if isinstance(number, int) else 0  # the ACL may forbid CLIENT ID
        self.connection, self.ask_host = (
            connection,
            ask_host,
        )  # only now: a node that cannot be reached is not asked again

    async def leave(self, error: PenstockError) -> None:
        """Find the server again after an error which means that another one may have the key."""
        await self._client.leave(self.connection, error)
        self.ask_host = error.ask_host if isinstance(error, Redirected) else None

    async def call(self, command: Command, timeout_s: float) -> Reply:
        """Send a read, opening a connection if needed, and return its reply; raise an error reply."""
        if not self.is_open:
            await self.open()
        reply = (await self.send([command], timeout_s))[0]
        if isinstance(reply, PenstockError):
            await self.close()  # another server may serve the key by now
            raise reply
        return reply

    async def send(self, commands: Sequence[Command], timeout_s: float, on_reply: OnReply | None = None) -> list[Reply]:
        """Send commands, the last of which reads, as Connection.pipeline() does."""
        assert self.connection is not None, "open() comes first"
        self.is_under_way, self.sent_s, self._received = True, time.monotonic(), self.connection.received
        try:
            if self.ask_host is None:
                return await self.connection.pipeline(commands, timeout_s, on_reply)
            pairs = [part for command in commands for part in (("ASKING",), command)]  # it counts for one command only
            notify = on_reply and (lambda place, reply: on_reply(place // 2, reply) if place % 2 else None)
            return (await self.connection.pipeline(pairs, timeout_s, notify))[1::2]
        except BaseException:
            self.abort()  # cancelled, timed out or broken
            raise
        finally:
            self.is_under_way = False

    async def wake(self) -> bool:
        """Make a waiting read return now; return False if there is none, or the server could not be asked."""
        connection = self.connection
        if not self.is_under_way or connection is None or not connection.client_id:
            return False
        # Redis 6.2 and 7.0 panic when CLIENT UNBLOCK hits a command that CLIENT PAUSE WRITE holds back, as a manual
        # failover does. The script is held back, too, and so is what follows it on this connection: once the pause is
        # over, the read waits for messages or has been answered.
        commands: list[Command] = [("EVAL", "return 1", 0), ("CLIENT", "UNBLOCK", connection.client_id)]
        for _ in range(_TRIES):
            with suppress(PenstockError):
                shared = await self._client.connection(self._key)
                if shared.where != connection.where:
                    return False  # there, the id is that of another client
                return bool((await shared.pipeline(commands))[-1] == 1)
        return False

    def abort(self) -> None:
        """Close the connection immediately, and with it the read under way."""
        if self.connection is not None:
            is_known = self.connection.is_open or self.connection.has_timed_out  # else the server has hung up
            if is_known and self.is_under_way:
                self._abandoned = self.connection
            self.connection.abort()

    async def close(self) -> None:
        """Close the connection, on which nothing is under way."""
        if self.connection is not None:
            await self.connection.close()

    async def kill_abandoned(self) -> None:
        """Make sure that an abandoned read is not executed later."""
        abandoned, self._abandoned = self._abandoned, None
        await self._client.kill_abandoned(self._key, abandoned)
