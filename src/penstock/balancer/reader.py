"""Takes new streams while there is capacity, the application keeps up and other consumers do not have fewer."""

from __future__ import annotations

from penstock.balancer.commands import BalancerCommands, OutOfReach, Row
from penstock.balancer.holdings import Holdings
from penstock.balancer.messages import LBSInfo, LBSInputMessage, StreamAdded
from penstock.balancer.notice_queue import NoticeQueue
from penstock.errors import AlreadyClaimed, GroupLost, PenstockError, PermanentError, ReadOnlyServer
from penstock.events import EventName
from penstock.redis.aio import Reply
from penstock.redis.blocking_read import BlockingRead
from penstock.redis.packing import Command
from penstock.redis.translate import Redirected
from penstock.runtime.aio import Flag, next_tick, pause

_BLOCK_MS = 1_000
_MAX_AT_ONCE = 16
_TURN_S = 0.01  # how long to wait while new streams are left to others
_REPLY_MARGIN_S = 5.0


class Reader:
    """Reads the load balancer stream.

    Guarantees: an entry is read once. If the process or the connection fails before it is locked, a sweep finds it.
    """

    def __init__(self, commands: BalancerCommands, holdings: Holdings, notices: NoticeQueue) -> None:
        self._commands, self._holdings, self._notices, self._config = commands, holdings, notices, commands.config
        self._stopping, self._has_slot = Flag(), Flag()
        self._blocking = BlockingRead(commands.client, commands.keys.stream)

    async def run(self) -> None:
        """Read until stop(); raise permanent errors."""
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._read_on()
                failures = 0
            except PermanentError:
                raise
            except PenstockError as error:
                failures += 1
                delay_s = self._config.retry_config.delay_s(failures)
                if delay_s is None:
                    raise
                self._config.logger.warning("cannot read %s: %s; retrying", self._commands.keys.stream, error)
                self._blocking.abort()
                if isinstance(error, Redirected | ReadOnlyServer):
                    await self._commands.client.refresh()
                await self._stopping.wait(delay_s)
        self._blocking.abort()

    async def _read_on(self) -> None:
        try:
            await self.read_once()
        except GroupLost:
            # From the beginning: entries in the stream are unfinished, and those with an owner are locked.
            self._config.logger.warning("group %s no longer existed; recreated it", self._commands.keys.group)
            await self._commands.create_group()

    async def stop(self) -> None:
        """Make run() end; entries that it has already read are locked and announced first."""
        self._stopping.set()
        self._has_slot.set()
        await self._blocking.wake()  # if that is forbidden, the read soon ends by itself

    def slot_is_free(self) -> None:
        """Record that a stream was finished, handed over or lost."""
        self._has_slot.set()

    async def read_once(self) -> None:
        """Wait for room, then for a stream, or while it is the turn of other consumers."""
        if not await self._notices.wait_for_room(_BLOCK_MS / 1000) or not await self._wait_for_slot():
            return
        if self._stopping.is_set():
            return
        taken = await self._commands.take(len(self._holdings), self._wanted())
        await self._own(taken.rows)
        if taken.is_waiting:
            await pause(_TURN_S)
        elif taken.is_ahead:
            await self._block(self._commands.watch_command(_BLOCK_MS))
        elif not taken.rows:
            await self._own(self._commands.parse_read(await self._block(self._commands.read_command(_BLOCK_MS))))
        await next_tick()

    def _wanted(self) -> int:
        capacity = self._config.capacity
        free = _MAX_AT_ONCE if capacity is None else capacity - len(self._holdings)
        return max(1, min(free, self._notices.room, _MAX_AT_ONCE))

    async def _wait_for_slot(self) -> bool:
        capacity = self._config.capacity
        if capacity is None or len(self._holdings) < capacity:
            return True
        self._has_slot.clear()
        if len(self._holdings) >= capacity and not self._stopping.is_set():
            await self._has_slot.wait(_BLOCK_MS / 1000)
        return len(self._holdings) < capacity

    async def _block(self, command: Command) -> Reply:
        if not self._blocking.is_open:
            await self._blocking.open()
        if self._stopping.is_set():
            return None
        return await self._blocking.call(command, _BLOCK_MS / 1000 + _REPLY_MARGIN_S)

    async def _own(self, rows: list[Row]) -> None:
        for entry_id, fields in rows:
            message = await self._commands.message_of(entry_id, fields)
            if message is not None:
                await self._own_one(LBSInfo(message.data_stream_name, entry_id), message)

    async def _own_one(self, info: LBSInfo, message: LBSInputMessage) -> None:
        recorder = self._config.metrics_recorder
        with self._holdings.claiming(info) as claim:
            if claim is None:
                return  # handed out again after the group was lost; already ours
            try:
                ownership = await self._commands.own_new(claim, message.info, len(self._holdings))
            except OutOfReach as error:
                self._config.logger.warning("%s", error)
                recorder.record_lock_acquired(info.data_stream_name, is_success=False)
                return
            except AlreadyClaimed as error:
                # A second entry of a name that has an owner: a sweep finds it later.
                self._config.logger.info("%s", error)
                recorder.record_lock_acquired(info.data_stream_name, is_success=False)
                return
            self._holdings.add(ownership)
        recorder.record_lock_acquired(info.data_stream_name, is_success=True)
        recorder.record_processing_started(info.data_stream_name)
        self._commands.emit(EventName.CLAIMED, id=info.id_in_lbs, data_stream=info.data_stream_name)
        self._notices.put(StreamAdded(info, message.info, ownership.token))
