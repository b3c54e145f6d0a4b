"""OwnedStream: a data stream in the hands of its owner, entry by entry."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence

from penstock import envelope
from penstock.balancer.holdings import Ownership
from penstock.balancer.messages import Info
from penstock.balancer.positions import Positions
from penstock.balancer.stream_watcher import StreamWatcher
from penstock.dead_letter_record import Record
from penstock.delivery.dead_letters import DeadLetterWriter
from penstock.delivery.decoding import Decoder, Rejected
from penstock.errors import NOT_OF_ONE_MESSAGE, ConfigurationError, OwnershipLost
from penstock.keys import BalancerKeys
from penstock.model import StreamMessage
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.runtime.aio import Activity, Event
from penstock.serializers import Serializer

logger = logging.getLogger("penstock.balancer")
_PAGE = 100
_WAIT_S = 1.0


class OwnedStream:
    """What a handler is given: the entries of one data stream, in their order, from the last committed position on.

    `async for message in stream` waits for more when it has reached the end. It ends when the stream is to be handed
    over, and raises OwnershipLost when it was taken over.
    """

    def __init__(
        self, client: StreamClient, ownership: Ownership, positions: Positions, watcher: StreamWatcher,
        serializer: Serializer | None,
    ) -> None:  # fmt: skip
        self._client, self.ownership, self._positions, self._watcher = client, ownership, positions, watcher
        self._decoder = Decoder(self.name, serializer, self.name, client.protection) if serializer is not None else None
        self._wake = Event()
        self._buffer: deque[StreamMessage] = deque()
        self._read_up_to = self._position = self._last = ""
        self.is_lost = self.is_draining = self.is_finished = False
        self.job: Activity | None = None

    # --- what it is ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The key of the data stream."""
        return self.ownership.payload.data_stream_name

    @property
    def info(self) -> Info | None:
        """What was said when the stream was added."""
        return self.ownership.additional_info

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every owner before. Hand it to whatever you write to."""
        return self.ownership.token

    @property
    def position(self) -> str:
        """The id of the last entry that is committed; `0-0` = none."""
        return self._position

    # --- reading ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find where the owner before has come to, and close the stream to it."""
        self._position = self._read_up_to = await self._positions.open(self.name, self.token)

    def __aiter__(self) -> AsyncIterator[StreamMessage]:
        return self

    async def __anext__(self) -> StreamMessage:
        while True:
            if self.is_lost:
                raise OwnershipLost(f"{self.name!r} was taken over by another consumer")
            if self.is_draining:
                raise StopAsyncIteration
            if self._buffer:
                message = self._buffer.popleft()
                self._last = message.id
                return message
            if not await self._fill():
                self._wake.clear()
                if not self._is_over:  # it may be over since it was looked at
                    await self._watcher.wait(self.name, self._read_up_to, self._wake, _WAIT_S)

    @property
    def _is_over(self) -> bool:
        return self.is_lost or self.is_draining

    async def _fill(self) -> bool:
        command = ("XREAD", "COUNT", _PAGE, "STREAMS", self.name, self._read_up_to)
        reply = await self._client.call(self.name, *command)
        if not reply:
            return False
        rows = reply[0][1]
        if self._decoder is None:
            for entry_id, fields in rows:
                self._buffer.append(
                    StreamMessage(entry_id.decode(), None, stream=self.name, fields=envelope.as_mapping(fields))
                )
        else:
            incoming = self._decoder.fresh(rows)
            self._buffer += incoming.messages
            for rejected in incoming.rejected:
                await self._dead_letter(rejected)
        self._read_up_to = rows[-1][0].decode()
        return True

    async def _dead_letter(self, rejected: Rejected) -> None:
        # One that cannot be decoded stays in the stream as it is; its copy tells why nobody handled it.
        key = BalancerKeys.dead_letters_of(self.name, is_cluster=self._client.is_cluster)

        async def add(record: Record, _: Sequence[bytes]) -> bool:
            return bool(await self._client.call(key, "XADD", key, "*", *record, repeat=Repeat.ONCE))

        try:
            await DeadLetterWriter(self._client, self.name, "", key, logger).write(rejected, "", add)
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception:
            logger.exception("%s: entry %s was not handled and cannot be dead-lettered", self.name, rejected.id)

    # --- saying how far it is -----------------------------------------------------------------------

    async def commit(self, message: StreamMessage | str | None = None) -> None:
        """Record that everything up to a message is done; without one, up to the last that was handed out.

        Raises OwnershipLost, and records nothing, when another consumer has begun with the stream.
        """
        position = message.id if isinstance(message, StreamMessage) else message or self._last
        if not position:
            raise ConfigurationError(f"nothing of {self.name!r} was handed out yet: there is nothing to commit")
        try:
            await self._positions.commit(self.name, self.token, position)
        except OwnershipLost:
            self.lose()
            raise
        self._position = position

    def finish(self) -> None:
        """Say that the stream is done for good, also if it is being handed over: it will not be handed out again."""
        self.is_finished = True

    # --- what others decide -------------------------------------------------------------------------

    def drain(self) -> None:
        """Let the iteration end after the message at hand: the stream is to be handed over."""
        self.is_draining = True
        self._wake.set()

    def lose(self) -> None:
        """Take note that another consumer owns the stream."""
        self.is_lost = True
        self._wake.set()
