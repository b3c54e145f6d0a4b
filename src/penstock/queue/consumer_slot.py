"""ConsumerSlot: a consumer of the group that holds one message at most.

So what is pending with a slot after a lost reply is what that reply handed out, and a message that another slot of the
same process has taken over is refused to this one like to a stranger.
"""

from __future__ import annotations

import time

from penstock.delivery.group_commands import GroupCommands, Redelivery, parse_rows
from penstock.errors import ConnectionLost, PenstockError
from penstock.keys import StreamKeys
from penstock.redis.aio import Command, Connection, Reply
from penstock.redis.blocking_read import connect
from penstock.redis.client import StreamClient
from penstock.redis.settings import Host
from penstock.redis.translate import Redirected
from penstock.runtime.aio import home


class ConsumerSlot:
    """One consumer, and the connection on which it waits for messages."""

    def __init__(self, client: StreamClient, keys: StreamKeys, group: str, consumer: str, dead_letters: str) -> None:
        self._client, self._stream = client, keys.stream
        self.consumer = consumer
        self.commands = GroupCommands(client, keys, group, consumer, dead_letters)
        self.is_doubtful = False  # a message may be pending here that nobody holds: until it is in a caller's hands
        self.is_given_up = False  # it keeps a message that can be settled in no way
        self._has_read = False  # what is in doubt was new; else it was taken from another consumer
        self._connection: Connection | None = None
        self._abandoned: Connection | None = None  # its last read may be on its way still
        self._home: object = None
        self._asked: Host | None = None
        self._begun: tuple[str, int, int] | None = None  # told to the server, which may not have answered
        self._ahead: tuple[str, list[bytes]] | None = None  # what is pending here, where that is known
        self.ahead_since = 0.0
        self.read_ahead = self.commands.read_command(1, None)

    def _doubt(self, *, has_read: bool) -> None:
        self.is_doubtful, self._has_read, self._begun, self._ahead = True, has_read, None, None

    def is_sure(self) -> None:
        """Take note that what is pending here is in a caller's hands, or that nothing is."""
        self.is_doubtful, self._begun, self._ahead = False, None, None

    # --- taken ahead --------------------------------------------------------------------------------

    def begin_ahead(self) -> None:
        """Take note that `read_ahead` is sent, by whomever."""
        self._doubt(has_read=True)
        self.ahead_since = time.monotonic()

    def end_ahead(self, reply: Reply) -> bool:
        """Keep what came for whoever asks next; False = nothing did."""
        if isinstance(reply, ConnectionLost):
            return False  # in doubt
        rows = [] if isinstance(reply, PenstockError) else parse_rows(reply)
        self.is_doubtful = bool(rows)
        self._ahead = (rows[0][0].decode(), rows[0][1]) if rows else None
        return bool(rows)

    @property
    def has_ahead(self) -> bool:
        """Whether a message waits here that was taken ahead."""
        return self._ahead is not None

    @property
    def ahead_id(self) -> str:
        """The id of the message that was taken ahead."""
        return self._ahead[0] if self._ahead else ""

    def forget_ahead(self) -> None:
        """Know no longer what is pending here, if anything is."""
        self._ahead = None

    def take_ahead(self, not_before_s: float) -> tuple[str, list[bytes]] | None:
        """Return the message that was taken ahead; None = there is none, or it may be somebody else's by now."""
        row, self._ahead = self._ahead, None
        return row if self.ahead_since >= not_before_s else None

    # --- taking -------------------------------------------------------------------------------------

    async def read(self, block_ms: int | None) -> tuple[str, list[bytes]] | None:
        """Take the next new message, waiting for one; None = none came in time."""
        connection = await self._open()
        command = self.commands.read_command(1, block_ms)
        commands: list[Command] = [("ASKING",), command] if self._asked else [command]
        timeout_s = self._client.settings.socket_timeout_s + (block_ms or 0) / 1000
        self._doubt(has_read=True)
        try:
            reply = (await connection.pipeline(commands, timeout_s=timeout_s))[-1]
        except PenstockError as error:
            self.is_doubtful = isinstance(error, ConnectionLost)
            if connection.has_timed_out:
                self._abandoned = connection
            raise
        except BaseException:  # cancelled, or interrupted: the server must not hand a message to nobody
            self._abandoned = connection
            connection.abort()
            raise
        rows = [] if isinstance(reply, PenstockError) else parse_rows(reply)
        self.is_doubtful = bool(rows)
        if isinstance(reply, PenstockError):
            raise reply
        return (rows[0][0].decode(), rows[0][1]) if rows else None

    async def take_due(self) -> tuple[int | None, list[Redelivery], list[str]]:
        """Take a message whose waiting time is over; return also the ms until the next one is due."""
        self._doubt(has_read=False)
        wait_ms, claims, missing = await self.commands.take_due(1)
        self.is_doubtful = bool(claims)
        return wait_ms, claims, missing

    async def recover(self, lease_ms: int, cursor: str, page: int) -> tuple[str, list[Redelivery], list[str]]:
        """Take a message whose holder has been silent for a lease; return also where to look next."""
        self._doubt(has_read=False)
        following, claims, missing = await self.commands.recover(lease_ms, 1, cursor, page)
        self.is_doubtful = bool(claims)
        return following, claims, missing

    async def take_lost(self) -> tuple[list[Redelivery], list[str]]:
        """Take what a lost reply had handed out, if it had."""
        abandoned, self._abandoned = self._abandoned, None
        await self._client.kill_abandoned(self._stream, abandoned)
        claims, missing = list[Redelivery](), list[str]()
        async for own in self.commands.own_pending():
            # Among them are those that wait for their retry, which are passed over.
            claims, missing = await self.commands.take(own, is_own_read=self._has_read) if own else ([], [])
            if claims or missing:
                break
        self.is_doubtful = bool(claims)
        return claims, missing

    async def begin(self, entry_id: str, deliveries: int, attempts: int) -> bool:
        """Count the coming run of a message that was handed out before; False = it is not ours any more."""
        self._begun = entry_id, deliveries, attempts
        (is_begun,) = await self.commands.begin([self._begun])
        return is_begun

    def counts_of(self, found: Redelivery) -> tuple[int, int]:
        """Return deliveries and attempts of a message before its coming run: a run that never was is no attempt."""
        if self._begun is not None and self._begun[0] == found.id:
            return self._begun[1:]
        return found.deliveries, found.attempts

    async def leave(self, error: PenstockError) -> None:
        """Look elsewhere after an error that says that another server may serve the stream by now."""
        await self._client.leave(self._connection, error)
        self._asked = error.asked if isinstance(error, Redirected) else None
        if self._asked is not None or not isinstance(error, ConnectionLost):
            self.close()

    async def _open(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_open or self._home is not home():
            connection = self._connection = await connect(self._client, self._stream, self._asked)
            self._home = home()
        return connection

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None and self._home is home():
            self._connection.abort()
        self._connection = None
