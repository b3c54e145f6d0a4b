"""OwnedStream: the entries of a data stream for its owner, the wait for more, and the committed position."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence

from penstock import envelope, ids
from penstock.balancer.commands import BalancerCommands
from penstock.balancer.holdings import Ownership
from penstock.balancer.messages import Info
from penstock.dead_letter_record import Record
from penstock.delivery.dead_letters import DeadLetterMover
from penstock.delivery.decoding import Decoder, Rejected
from penstock.errors import NOT_OF_ONE_MESSAGE, ConfigurationError, OwnershipLost, PenstockError
from penstock.events import Emitter
from penstock.keys import BalancerKeys
from penstock.model import StreamMessage
from penstock.redis.blocking_read import BlockingRead
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.redis.reading import PageLimits, size_of
from penstock.redis.retry import Repeat
from penstock.runtime.aio import Activity, Flag
from penstock.serializers import Serializer

_PAGE = PageLimits(100, 100, 4 << 20)
_WAIT_S = 1.0
_WATCH_MS = 100  # a stream that starts waiting joins the next round
_REPLY_MARGIN_S = 5.0
_ROUND = 2_000  # streams of one round
_BEGINNING = "0-0"
_KEPT_AFTER_THE_END_MS = 7 * 24 * 3600 * 1000


class StreamWatcher:
    """Wakes those that wait for new entries of a stream. In a cluster, each stream needs a read of its own instead."""

    def __init__(self, client: StreamClient) -> None:
        self._client = client
        self._waiting: dict[str, tuple[str, Flag]] = {}
        self._changed, self._stopping = Flag(), Flag()
        self._blocking: BlockingRead | None = None
        self._alone: dict[str, BlockingRead] = {}

    def stop(self) -> None:
        """Make run() end."""
        self._stopping.set()
        self._changed.set()

    async def wait(self, key: str, after: str, wake: Flag, timeout_s: float) -> None:
        """Wait until the stream has an entry after the given one, the flag is set, or the timeout."""
        if self._client.is_cluster:
            await self._wait_alone(key, after, wake, timeout_s)
            return
        self._waiting[key] = (after, wake)
        self._changed.set()
        try:
            await wake.wait(timeout_s)
        finally:
            self._waiting.pop(key, None)

    async def _wait_alone(self, key: str, after: str, wake: Flag, timeout_s: float) -> None:
        reading = self._alone.setdefault(key, BlockingRead(self._client, key))
        command = ("XREAD", "COUNT", 1, "BLOCK", max(1, int(timeout_s * 1000)), "STREAMS", key, after)
        try:
            await reading.call(command, timeout_s + _REPLY_MARGIN_S)
        except PenstockError:
            await wake.wait(_WATCH_MS / 1000)  # then the caller's own read raises the error

    def leave(self, key: str) -> None:
        """Close what was opened to wait for a stream."""
        reading = self._alone.pop(key, None)
        if reading is not None:
            reading.abort()

    async def run(self) -> None:
        """Watch until stop()."""
        while not self._stopping.is_set():
            waiting = list(self._waiting.items())[:_ROUND]
            if not waiting:
                self._changed.clear()
                if not self._waiting and not self._stopping.is_set():  # both change before the flag is set
                    await self._changed.wait()
                continue
            try:
                ready = await self._watch([key for key, _ in waiting], [after for _, (after, _) in waiting])
            except PenstockError:
                # Those that wait get the error from their own read: it may concern only one stream.
                ready = [key for key, _ in waiting]
                await self._stopping.wait(_WATCH_MS / 1000)
            for key in ready:
                found = self._waiting.pop(key, None)
                if found is not None:
                    found[1].set()
        if self._blocking is not None:
            self._blocking.abort()

    async def _watch(self, keys: list[str], after: list[str]) -> list[str]:
        if self._blocking is None or not self._blocking.is_open:
            self._blocking = BlockingRead(self._client, keys[0])
        command: Command = ("XREAD", "COUNT", 1, "BLOCK", _WATCH_MS, "STREAMS", *keys, *after)
        reply = await self._blocking.call(command, _WATCH_MS / 1000 + _REPLY_MARGIN_S)
        return [row[0].decode() for row in reply or ()]


class OwnedStream:
    """The entries of one data stream in order, from the last committed position on; passed to handlers.

    `async for message in stream` waits for more at the end. It ends when the stream must be handed over, and raises
    OwnershipLost if it was taken over.
    """

    def __init__(
        self, commands: BalancerCommands, ownership: Ownership, watcher: StreamWatcher, serializer: Serializer | None
    ) -> None:
        client, config = commands.client, commands.config
        self._client, self._keys, self.ownership, self._watcher = client, commands.keys, ownership, watcher
        self._decoder = Decoder(self.name, serializer, self.name, client.protection) if serializer is not None else None
        self._dead_letters = BalancerKeys.dead_letters_of(self.name, is_cluster=client.is_cluster)
        self._logger, emit = config.logger, Emitter(config.on_event, self.name)
        self._dead_letter_writer = DeadLetterMover(client, self.name, "", self._dead_letters, config.logger, emit)
        self._wake = Flag()
        self._page = _PAGE.first
        self._buffer: deque[StreamMessage | Rejected] = deque()
        self._read_up_to = self._position = self._passed = self._last = ""
        self.is_lost = self.is_draining = self.is_finished = False
        self.job: Activity | None = None

    # --- what it is ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The key of the data stream."""
        return self.ownership.payload.data_stream_name

    @property
    def info(self) -> Info | None:
        """The information that was given when the stream was added."""
        return self.ownership.additional_info

    @property
    def token(self) -> int:
        """The fencing token, greater than that of every earlier owner; pass it to the systems you write to."""
        return self.ownership.token

    @property
    def position(self) -> str:
        """The id of the last entry that is committed; `0-0` = none."""
        return self._position

    # --- reading ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the position of the previous owner, and fence it off."""
        self._position = self._passed = self._read_up_to = await self._record("")

    def __aiter__(self) -> AsyncIterator[StreamMessage]:
        return self

    async def __anext__(self) -> StreamMessage:
        while True:
            if self.is_lost:
                raise OwnershipLost(f"another consumer took over data stream {self.name!r}")
            if self.is_draining:
                raise StopAsyncIteration
            if self._buffer:
                entry = self._buffer[0]
                if isinstance(entry, Rejected):
                    await self._skip(entry)
                    self._buffer.popleft()
                    continue
                self._buffer.popleft()
                self._passed = self._last = entry.id
                return entry
            if not await self._fill():
                self._wake.clear()
                if not self._is_over:  # it may have ended since the check
                    await self._watcher.wait(self.name, self._read_up_to, self._wake, _WAIT_S)

    @property
    def _is_over(self) -> bool:
        return self.is_lost or self.is_draining

    async def _fill(self) -> bool:
        command = ("XREAD", "COUNT", self._page, "STREAMS", self.name, self._read_up_to)
        reply = await self._client.call(self.name, *command)
        if not reply:
            return False
        rows = reply[0][1]
        self._page = _PAGE.after(len(rows), size_of(rows))
        if self._decoder is None:
            for entry_id, fields in rows:
                self._buffer.append(
                    StreamMessage(entry_id.decode(), None, stream=self.name, fields=envelope.as_mapping(fields))
                )
        else:
            incoming = self._decoder.fresh(rows)
            self._buffer.extend(sorted([*incoming.messages, *incoming.rejected], key=lambda entry: ids.parse(entry.id)))
        self._read_up_to = rows[-1][0].decode()
        return True

    async def _skip(self, rejected: Rejected) -> None:
        # When the iteration comes to it, and committed if nothing before it waits for that: the next owner reads it
        # again, and dead-letters it again, if it begins before it.
        await self._dead_letter(rejected)
        is_next, self._passed = self._position == self._passed, rejected.id
        if is_next:
            await self.commit(rejected.id)
            self._last = rejected.id

    async def _dead_letter(self, rejected: Rejected) -> None:
        # An entry that cannot be decoded stays in the stream; its copy says why it was not handled.
        key = self._dead_letters

        async def add(record: Record, _: Sequence[bytes]) -> bool:
            return bool(await self._client.call(key, "XADD", key, "*", *record, repeat=Repeat.ONCE))

        try:
            await self._dead_letter_writer.write(rejected, "", add)
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception:
            self._logger.exception("%s: entry %s was not handled, and cannot be dead-lettered", self.name, rejected.id)

    # --- the position -------------------------------------------------------------------------------

    async def commit(self, message: StreamMessage | str | None = None) -> None:
        """Record that everything up to a message is done; by default, up to the last one returned.

        Raises OwnershipLost, and records nothing, if another consumer has opened the stream.
        """
        position = message.id if isinstance(message, StreamMessage) else message or self._last
        if not position:
            raise ConfigurationError(f"cannot commit: no message of {self.name!r} was handed out yet")
        try:
            await self._record(position)
        except OwnershipLost:
            self.lose()
            raise
        self._position = position

    async def close(self) -> None:
        """Let the position of the finished stream expire after a week; until then, adding it again continues there."""
        await self._record("", _KEPT_AFTER_THE_END_MS)

    async def _record(self, position: str, ttl_ms: int | str = "") -> str:
        # From the first call on, the positions of earlier owners are refused.
        keys, args = [self._keys.position(self.name)], (self.token, position, ttl_ms)
        found, is_current = await self._client.run("balancer/position", keys, args, Repeat.IDEMPOTENT)
        if not is_current:
            raise OwnershipLost(
                f"the position of {self.name!r} was not recorded: a newer owner has opened the stream (token "
                f"{self.token} is out of date)"
            )
        return found.decode() or _BEGINNING

    def finish(self) -> None:
        """Mark the stream as done, even if it is being handed over, so that it is not handed out again."""
        self.is_finished = True

    # --- what others decide -------------------------------------------------------------------------

    def drain(self) -> None:
        """End the iteration after the current message, so that the stream can be handed over."""
        self.is_draining = True
        self._wake.set()

    def lose(self) -> None:
        """Record that another consumer owns the stream."""
        self.is_lost = True
        self._wake.set()
