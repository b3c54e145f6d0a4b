"""StreamConsumer: messages of a group to a handler, at least once, each with one live holder at a time."""

from __future__ import annotations

import logging
import random
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar

from penstock.config import ConsumerConfig
from penstock.counters import Tally
from penstock.delivery.ack_buffer import AckBuffer
from penstock.delivery.callables import BatchHandler, MessageHandler, awaitable, batch_call, message_call
from penstock.delivery.dead_letters import DeadLetterWriter
from penstock.delivery.decoding import Decoded, Decoder, Rejected
from penstock.delivery.drain import CLEANUP_TIMEOUT_S, Drain, graceful_end
from penstock.delivery.group import ConsumerGroup
from penstock.delivery.group_commands import GroupCommands
from penstock.delivery.in_flight import Row
from penstock.delivery.inbox import Inbox
from penstock.delivery.janitor import Janitor
from penstock.delivery.leases import StreamLeases
from penstock.delivery.reader import MessageReader, PrefetchWindow
from penstock.delivery.recovery import Recovery
from penstock.errors import ConfigurationError, ConsumerNameTaken, GroupLost, TransientError
from penstock.events import Emitter, EventName, EventSink
from penstock.keys import StreamKeys, check_dead_letters
from penstock.model import ConsumerMetrics, PassReport, StreamMessage
from penstock.redis.client import StreamClient
from penstock.redis.retry import pause_s
from penstock.runtime.aio import Event, TaskGroup, Threads, call_in_loop, home, shielded
from penstock.serializers import Serializer
from penstock.streams.workers import Workers

logger = logging.getLogger("penstock.streams")
_MESSAGE_WORKERS = 16


class StreamConsumer:
    """Runs a handler on the messages of one stream, as one consumer of a group.

    `handler` gets a list of messages and returns the ids that are done; `message_handler` gets one message, and
    returning means that it is done. Both may be async or plain functions. An exception, or an id that is not returned,
    is a failed attempt: the message comes again after a growing delay, and goes to the dead letters when its chances
    are used up.
    """

    _instances: ClassVar[weakref.WeakSet[StreamConsumer]] = weakref.WeakSet()

    def __init__(
        self,
        client: StreamClient,
        stream: str,
        config: ConsumerConfig,
        handler: BatchHandler | None = None,
        dlq_handler: Callable[[StreamMessage, str], object] | None = None,
        serializer: Serializer | None = None,
        error_hook: Callable[[BaseException, list[StreamMessage]], object] | None = None,
        *,
        message_handler: MessageHandler | None = None,
        on_event: EventSink | None = None,
    ) -> None:
        if (handler is None) == (message_handler is None):
            raise ConfigurationError("give exactly one of handler (a batch) and message_handler (one message)")
        self.client, self.stream, self.config = client, stream, config
        self.worker_name = config.resolved_worker_name()
        self._tell = Emitter(on_event, stream, config.group)
        self._group = ConsumerGroup(client, stream, config.group)
        self._tally = Tally()
        self._stopping, self._chance = Event(), random.Random()
        self._concurrency = config.concurrency or (1 if handler is not None else _MESSAGE_WORKERS)
        self._threads = Threads(self._concurrency)
        self._rejected: list[Rejected] = []
        self._has_rejected = Event()
        self._home: object = None
        self._fenced: ConsumerNameTaken | None = None
        self._exit: BaseException | None = None
        self._is_open = False
        self._last_recovery_s = float("-inf")
        self._build(handler, message_handler, dlq_handler, serializer, error_hook)
        StreamConsumer._instances.add(self)

    def _build(self, handler: Any, message_handler: Any, dlq_handler: Any, serializer: Any, error_hook: Any) -> None:
        # The parts, each of which knows only those it is given.
        config, keys, threads = self.config, self.client.keys(self.stream), self._threads
        dead_letters = self.client.keys(config.dlq_stream).stream if config.dlq_stream else keys.default_dead_letters()
        check_dead_letters(keys.stream, dead_letters, "dlq_stream", is_cluster=self.client.is_cluster)
        self._commands = GroupCommands(self.client, keys, config.group, self.worker_name, dead_letters)
        limits = config.limits
        self._decoder = Decoder(self.stream, serializer, keys.stream, self.client.protection)
        self._inbox = Inbox(
            self._decode_fresh, lambda message: limits.is_last_chance(message.delivery_count, message.attempts)
        )
        self._acks = AckBuffer(self._commands, self._inbox, self._tally, self._ack_refused)
        hook = awaitable(dlq_handler, threads, "dlq_handler") if dlq_handler is not None else None
        self._dead_letter_writer = DeadLetterWriter(
            self.client, keys.stream, config.group, dead_letters, logger, self._emit, hook
        )
        if handler is not None:
            call, limit = batch_call(awaitable(handler, threads, "handler")), config.batch_size
        else:
            call, limit = message_call(awaitable(message_handler, threads, "message_handler")), 1
        self._at_once = self._concurrency * limit
        self._reader = MessageReader(
            self.client, self._commands, self._inbox, self._acks, self._decoder, self._tally,
            self._emit, PrefetchWindow(config.batch_size, config.max_prefetch), config.effective_recovery_ms / 1000,
            self._set_apart,
        )  # fmt: skip
        self._recovery = Recovery(
            self._commands, self._inbox, self._reader, self._tally, self._emit, config.lease_ms, config.max_prefetch,
            config.max_claim_passes,
        )  # fmt: skip
        self._workers = Workers(
            self._inbox, self._acks, self._commands, self._dead_letter_writer, self._tally, self._emit, call,
            awaitable(error_hook, threads, "error_hook") if error_hook is not None else None,
            limits, config.backoff, limit, self._parked, self._exit_asked,
        )  # fmt: skip
        self._leases = StreamLeases(
            self.client.settings, keys.stream, config.group, self.worker_name, config.effective_heartbeat_ms / 1000,
            config.lease_ms, lambda: {keys: self._renewable_ids()}, self._leases_lost,
        )  # fmt: skip
        self._drain = Drain(
            self._commands, self._inbox, self._reader, self._acks, self._tally, self._emit,
            lambda: self._fenced is not None,
        )  # fmt: skip
        self._janitor = Janitor(self.client, self._group, keys, config, self.worker_name, dead_letters, self._emit)

    # --- public -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle messages until stop(), SIGTERM, SIGINT, or an error that does not pass by itself, which is raised.

        Guarantees: on the way out nothing new begins, running handlers get `shutdown_grace_ms`, and what is left is
        handed back at once without counting an attempt. Cancelling run() hands back too. A handler that calls
        sys.exit() has failed like any other; then run() ends, and raises SystemExit.
        """
        activities, workers = TaskGroup(self._stopping.set_from_outside), TaskGroup(self._stopping.set_from_outside)
        grace_s, on_signal = self.config.shutdown_grace_ms / 1000, self.stop if self.config.handle_signals else None
        self._inbox.reopen()
        try:
            async with graceful_end(partial(self._wind_up, activities, workers), grace_s, on_signal):
                await self._persist(self._open)
                self._leases.start()
                self._start(activities, workers)
                await self._stopping.wait()
        finally:
            self._leases.stop()  # whatever happened: nobody renews leases for a consumer that is gone
        self._raise_exit()
        activities.raise_failure()
        workers.raise_failure()
        if self._fenced is not None:
            raise self._fenced

    async def run_once(self) -> PassReport:
        """Do one full pass: the group, new messages, failed ones that are due, recovery when it is due."""
        mark = self._tally.mark()
        self._inbox.reopen()
        await self._open()
        self._leases.start()
        try:
            await self._pass(self._read_pass)
            await self._pass(self._recovery.take_due)
            if time.monotonic() - self._last_recovery_s >= self.config.effective_recovery_ms / 1000:
                self._last_recovery_s = time.monotonic()
                await self._pass(self._recovery.take_expired)
            await self._janitor.run_due()
        except BaseException:
            # Cancelled or cut off in the middle: the next pass would pass over what this one still holds.
            await shielded(CLEANUP_TIMEOUT_S, self._drain.let_go)
            raise
        finally:
            self._leases.stop()
        return self._tally.report_since(mark)

    def stop(self) -> None:
        """Make run() return; may be called from any thread and from signal handlers."""
        self._stopping.set_from_outside()

    async def close(self) -> None:
        """Give up the connection that run_once() keeps open; the client stays open."""
        await self._reader.close()
        self._threads.close()

    def metrics(self) -> ConsumerMetrics:
        """Return the counters of this consumer; asks nothing of Redis."""
        return self._tally.metrics()

    @classmethod
    def all_metrics(cls) -> list[ConsumerMetrics]:
        """Return the counters of every living consumer of this process."""
        return [consumer.metrics() for consumer in list(cls._instances)]

    # --- one pass -----------------------------------------------------------------------------------

    async def _read_pass(self) -> None:
        await self._reader.read(self.config.batch_size, self.config.block_ms or None)

    async def _pass(self, step: Callable[[], Awaitable[Any]]) -> None:
        # Bring messages in, handle all of them, and say so before the pass goes on.
        try:
            await step()
            await self._workers.drain(_directly)
            await self._dead_letter_rejected()
            await self._acks.flush()
        except GroupLost:
            await self._restore_group()
        self._raise_exit()

    # --- running ------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        config = self.config
        self._home = home()
        await self._group.ensure(config.dlq_stream, config.dlq_group)
        if not self._is_open:
            if config.worker_name is not None:
                await self._commands.take_name(secrets.token_hex(8), self._leases.name_ttl_ms)
                self._leases.keep_name(self._commands.incarnation, self._set_fenced)
            await self._commands.ack([], forget=False, record=True)
            self._is_open = True

    def _start(self, activities: TaskGroup, workers: TaskGroup) -> None:
        config = self.config
        for _ in range(self._concurrency):
            workers.start(self._workers.work, self._persist)
        recovery_s = config.effective_recovery_ms / 1000
        activities.start(self._repeat, lambda: self._reader.read_ahead(config.block_ms), 0.0)
        activities.start(self._repeat, self._acks.run_once, 0.0)
        activities.start(self._repeat, self._dead_letter_once, 0.0)
        activities.start(self._repeat, self._recovery.retry_once, 0.0)
        activities.start(self._repeat, lambda: self._recovery.take_expired(self._at_once), recovery_s)
        activities.start(self._repeat, self._janitor.run_due, min(1.0, config.retention_interval_ms / 1000))
        if config.handler_timeout_ms is not None:
            activities.start(self._watch_timeouts, config.handler_timeout_ms / 1000)

    async def _repeat(self, step: Callable[[], Awaitable[Any]], every_s: float) -> None:
        while not self._is_over():
            await self._persist(step)
            if every_s:
                await self._stopping.wait(every_s * self._chance.uniform(0.8, 1.0))

    async def _watch_timeouts(self, timeout_s: float) -> None:
        while not self._is_over():
            self._workers.interrupt_overdue(timeout_s)
            await self._stopping.wait(min(1.0, timeout_s / 4))

    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._inbox.is_closed

    async def _persist(self, step: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Repeat a step through outages of Redis until it succeeds, the consumer is over, or the error is permanent."""
        failures = 0
        while True:
            try:
                return await step(*args)
            except GroupLost:
                if self._is_over():
                    return None
                await self._restore_group()
            except ConsumerNameTaken:
                self._set_fenced()
                raise
            except TransientError as error:
                failures += 1
                if self._is_over():
                    return None
                logger.warning("%s: %s; trying again", self.worker_name, error)
            if failures:
                await self._stopping.wait(pause_s(failures, self._chance))

    async def _restore_group(self) -> None:
        try:
            position = await self._group.restore(self.worker_name)
            if position is not None:
                logger.error("group %s of %s was gone: created again at %s", self.config.group, self.stream, position)
                self._emit(EventName.GROUP_LOST, position=position)
        except TransientError as error:
            logger.warning("%s: %s", self.worker_name, error)
        self._reader.must_sweep()

    # --- winding up ---------------------------------------------------------------------------------

    async def _wind_up(self, activities: TaskGroup, workers: TaskGroup, grace_s: float) -> None:
        self._stopping.set()  # cancelled: wake whoever waits for the next turn
        await self._drain.begin()
        await self._drain.let_finish(workers, grace_s)
        for waited_for in (self._acks.dirty, self._recovery.wake, self._has_rejected):
            waited_for.set()
        if not await activities.join(1.0):
            await activities.cancel()
        await self._drain.end()
        self._leases.stop()
        await self._drain.quietly(self._commands.leave_name)
        await self._reader.close()
        self._is_open = False
        self._group.reset()
        self._stopping.clear()
        self._emit(EventName.STOPPED)

    # --- what the parts report ----------------------------------------------------------------------

    def _emit(self, name: EventName, **fields: object) -> None:
        if name is EventName.DEAD_LETTERED:
            self._tally.count(dead=1)
        if name is EventName.DEAD_LETTERS_TRIMMED and isinstance(count := fields["count"], int):
            self._tally.count(dead_trimmed=count)  # here, for the chores have no other way to it
        self._tell(name, **fields)

    def _ack_refused(self, refused: list[str]) -> None:
        self._tally.count(lease_lost=len(refused))
        self._emit(EventName.LEASE_LOST, ids=refused)

    def _leases_lost(self, _keys: StreamKeys, lost: list[str]) -> None:
        # Called by a thread.
        for message in self._inbox.held.find(lost).values():
            if message is not None:
                message.lease_lost = True
        call_in_loop(self._home, self._workers.lose_leases, lost)

    def _set_fenced(self) -> None:
        self._fenced = ConsumerNameTaken(
            f"another process runs as worker_name={self.worker_name!r} of group {self.config.group!r}; "
            f"this one is fenced off. Give every process a name of its own, or none"
        )
        self._stopping.set_from_outside()

    def _exit_asked(self, error: BaseException) -> None:
        # By a handler whose message is settled as failed: nothing new begins, and run() raises what the handler raised.
        self._exit = error
        self._inbox.close()
        self._stopping.set_from_outside()

    def _raise_exit(self) -> None:
        error, self._exit = self._exit, None
        if error is not None:
            raise error

    def _parked(self) -> None:
        self._reader.parked()
        self._recovery.wake.set()

    def _renewable_ids(self) -> list[str]:
        unsettled, timeout_ms = self._inbox.held.unsettled_ids(), self.config.handler_timeout_ms
        if timeout_ms is None:
            return unsettled
        # A hung handler is not renewed for ever: past its time the lease runs out and another consumer takes over.
        late_s = time.monotonic() - timeout_ms / 1000 - self.config.lease_ms / 1000
        overdue = {m.id for slot in list(self._workers.slots) if slot.started_s < late_s for m in slot.messages}
        return [entry_id for entry_id in unsettled if entry_id not in overdue]

    def _decode_fresh(self, rows: list[Row]) -> list[StreamMessage]:
        incoming = self._decoder.fresh(rows)
        if incoming.rejected:
            self._set_apart(incoming)
        return incoming.messages

    def _set_apart(self, incoming: Decoded) -> None:
        for rejected in incoming.rejected:
            self._inbox.held.set_apart(rejected.as_message(self.stream))
            self._rejected.append(rejected)
        self._has_rejected.set()

    async def _dead_letter_once(self) -> None:
        await self._has_rejected.wait()
        self._has_rejected.clear()
        await self._persist(self._dead_letter_rejected)

    async def _dead_letter_rejected(self) -> None:
        while self._rejected:
            rejected = self._rejected[0]
            message = self._inbox.held.get(rejected.id)
            if message is not None:
                await self._workers.dead_letter(message, rejected.reason, rejected.error, rejected.fields)
            self._rejected.pop(0)


async def _directly(step: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await step(*args)
