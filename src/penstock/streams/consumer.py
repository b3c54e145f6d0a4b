"""StreamConsumer: calls a handler for the messages of a group, at least once, with one live holder at a time."""

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
from penstock.delivery.acks import AckSender
from penstock.delivery.callables import (
    BatchHandler,
    MessageHandler,
    awaitable,
    batch_call,
    check_takes,
    hung,
    message_call,
)
from penstock.delivery.dead_letters import DeadLetterMover
from penstock.delivery.decoding import Decoder
from penstock.delivery.delivery import ConsumerContext, Delivery
from penstock.delivery.drain import CLEANUP_TIMEOUT_S, Drain, graceful_end
from penstock.delivery.group import ConsumerGroup, recreate
from penstock.delivery.group_commands import GroupCommands
from penstock.delivery.in_flight import InFlight
from penstock.delivery.janitor import Janitor
from penstock.delivery.leases import StreamLeases
from penstock.delivery.reader import MessageReader
from penstock.delivery.recovery import Recovery
from penstock.errors import ConfigurationError, ConsumerNameTaken, GroupLost, TransientError
from penstock.events import Emitter, EventName, EventSink
from penstock.keys import StreamKeys, check_dead_letters
from penstock.logs import OutageLog
from penstock.model import ConsumerMetrics, PassReport, StreamMessage
from penstock.redis.client import StreamClient, check_client
from penstock.redis.retry import pause_s
from penstock.runtime.aio import Flag, TaskGroup, Threads, call_in_loop, connection_scope, shielded
from penstock.serializers import Serializer
from penstock.streams.workers import DeliveryWorkers
from penstock.type_checks import check_type

logger = logging.getLogger("penstock.streams")
_MESSAGE_WORKERS = 16


class StreamConsumer:
    """Runs a handler on the messages of one stream, as one consumer of a group.

    `handler` gets a list of messages and returns the ids of those that are finished; `message_handler` gets one
    message, and returning means that it is finished. Both may be async or plain functions. An exception, or an id that
    is not returned, is a failed attempt: the message is retried after a growing delay, and dead-lettered when its
    attempts are used up.
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
            raise ConfigurationError(
                "pass exactly one of handler (for batches) and message_handler (for single messages)"
            )
        check_client(client)
        check_type("config", config, ConsumerConfig, "ConsumerConfig(group='workers')")
        self.client, self.stream, self.config = client, stream, config
        self.worker_name = config.resolved_worker_name()
        self._emitter = Emitter(on_event, stream, config.group)
        self._group = ConsumerGroup(client, stream, config.group)
        self._tally = Tally()
        self._stopping, self._rng = Flag(), random.Random()
        self._outage = OutageLog(logger, f"consumer {self.worker_name} of {stream}/{config.group}")
        self._concurrency = config.concurrency or (1 if handler is not None else _MESSAGE_WORKERS)
        self._threads = Threads(self._concurrency + 1)  # one for the dlq_handler of messages that no worker gets
        self._scope: object = None
        self._fenced: ConsumerNameTaken | None = None
        self._exit: BaseException | None = None
        self._is_open = False
        self._last_recovery_s = float("-inf")
        self._build(handler, message_handler, dlq_handler, serializer, error_hook)
        StreamConsumer._instances.add(self)

    def _build(self, handler: Any, message_handler: Any, dlq_handler: Any, serializer: Any, error_hook: Any) -> None:
        client, config, keys, threads = self.client, self.config, self.client.keys(self.stream), self._threads
        dead_letters = client.keys(config.dlq_stream).stream if config.dlq_stream else keys.default_dead_letters()
        check_dead_letters(keys.stream, dead_letters, "dlq_stream", is_cluster=client.is_cluster)
        if handler is not None:
            check_takes("handler", handler, batches=True)
            call, limit = batch_call(awaitable(handler, threads, "handler")), config.batch_size
        else:
            check_takes("message_handler", message_handler, batches=False)
            call, limit = message_call(awaitable(message_handler, threads, "message_handler")), 1
        self._at_once = self._concurrency * limit
        hook = awaitable(dlq_handler, threads, "dlq_handler", 2) if dlq_handler is not None else None
        on_error = awaitable(error_hook, threads, "error_hook", 2) if error_hook is not None else None
        self._commands = GroupCommands(client, keys, config.group, self.worker_name, dead_letters)
        decoder = Decoder(self.stream, serializer, keys.stream, client.protection)
        writer = DeadLetterMover(client, keys.stream, config.group, dead_letters, logger, self._emit, hook)
        self._in_flight = InFlight(
            ConsumerContext(client, self._commands, config, decoder, writer, self._tally, self._emit)
        )
        self._acks = AckSender(self._in_flight)
        self._reader = MessageReader(self._in_flight, self._acks)
        self._recovery = Recovery(self._in_flight, self._reader)
        self._workers = DeliveryWorkers(self._in_flight, call, on_error, limit, self._acks.flush, self._on_exit_request)
        self._drain = Drain(self._in_flight, self._reader, self._acks)
        self._leases = StreamLeases(
            client.settings, keys.stream, config.group, self.worker_name, config.effective_heartbeat_ms / 1000,
            config.lease_ms, lambda: {keys: self._renewable_ids()}, self._leases_lost,
        )  # fmt: skip
        self._janitor = Janitor(client, self._group, keys, config, self.worker_name, dead_letters, self._emit)

    # --- public -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle messages until stop(), SIGTERM, SIGINT, or a permanent error, which is raised.

        Guarantees: when stopping, no new handler starts, running handlers get `shutdown_grace_ms`, and all other
        messages are handed back without counting an attempt. Cancelling run() also hands them back. A handler that
        calls sys.exit() has failed like any other; then run() ends and raises SystemExit.
        """
        activities, workers = TaskGroup(self._stopping.set_from_outside), TaskGroup(self._stopping.set_from_outside)
        grace_s, on_signal = self.config.shutdown_grace_ms / 1000, self.stop if self.config.handle_signals else None
        self._in_flight.reopen()
        try:
            async with graceful_end(partial(self._shut_down, activities, workers), grace_s, on_signal):
                await self._persist(self._open)
                self._leases.start()
                self._start(activities, workers)
                await self._stopping.wait()
        finally:
            self._leases.stop()  # in any case: a consumer that has ended must not renew leases
        self._raise_exit()
        activities.raise_failure()
        workers.raise_failure()
        if self._fenced is not None:
            raise self._fenced

    async def run_once(self) -> PassReport:
        """Do one full pass: ensure the group, handle new messages and due retries, and recover if it is due."""
        mark = self._tally.mark()
        self._in_flight.reopen()
        await self._open()
        self._leases.start()
        try:
            await self._pass(partial(self._reader.read, self.config.batch_size))
            await self._pass(self._recovery.take_due)
            if time.monotonic() - self._last_recovery_s >= self.config.effective_recovery_ms / 1000:
                self._last_recovery_s = time.monotonic()
                await self._pass(self._recovery.take_expired)
            await self._janitor.run_due()
        except BaseException:
            # Cancelled or disconnected: the next pass would skip messages that this one still holds.
            await shielded(CLEANUP_TIMEOUT_S, self._drain.hand_back_all)
            raise
        finally:
            self._leases.stop()
        return self._tally.report_since(mark)

    def stop(self) -> None:
        """Make run() return; may be called from any thread and from signal handlers."""
        self._stopping.set_from_outside()

    async def close(self) -> None:
        """Close the connection that run_once() keeps open; the client stays open."""
        await self._reader.close()
        self._threads.close()

    def metrics(self) -> ConsumerMetrics:
        """Return the counters of this consumer, without a call to Redis."""
        return self._tally.metrics()

    @classmethod
    def all_metrics(cls) -> list[ConsumerMetrics]:
        """Return the counters of every open consumer of this process."""
        return [consumer.metrics() for consumer in list(cls._instances)]

    # --- one pass -----------------------------------------------------------------------------------

    async def _pass(self, step: Callable[[], Awaitable[Any]]) -> None:
        # Get messages, handle all of them, and acknowledge them before the pass continues.
        try:
            await step()
            await self._workers.handle_waiting(_directly)
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
        self._scope = connection_scope()
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
        activities.start(self._repeat, self._reader.read_ahead, 0.0)
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
                await self._stopping.wait(every_s * self._rng.uniform(0.8, 1.0))

    async def _watch_timeouts(self, timeout_s: float) -> None:
        while not self._is_over():
            self._workers.interrupt_overdue()
            await self._stopping.wait(min(1.0, timeout_s / 4))

    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._in_flight.is_closed

    async def _persist(self, step: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Repeat a step through outages of Redis until it succeeds, the consumer is over, or the error is permanent."""
        failures = 0
        while True:
            try:
                done = await step(*args)
                if failures:
                    self._outage.succeeded()
                return done
            except GroupLost:
                if self._is_over():
                    return None
                failures += not await self._restore_group()
            except ConsumerNameTaken:
                self._set_fenced()
                raise
            except TransientError as error:
                failures += 1
                if self._is_over():
                    return None
                self._outage.failed(error)
            if failures:
                await self._stopping.wait(pause_s(failures, self._rng))

    async def _restore_group(self) -> bool:
        # Returns False if the server refuses that for now.
        try:
            await recreate(self._group, self.worker_name, logger, self._emit)
        except TransientError as error:
            self._outage.failed(error)
            return False
        finally:
            self._reader.must_sweep()
        return True

    # --- shutting down ------------------------------------------------------------------------------

    async def _shut_down(self, activities: TaskGroup, workers: TaskGroup, grace_s: float) -> None:
        self._stopping.set()  # if cancelled: wake the activities
        await self._drain.begin()
        await self._drain.wait_for_handlers(workers, grace_s)
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
            self._tally.count(dead_trimmed=count)  # here, because the chores have no access to it
        self._emitter(name, **fields)

    def _leases_lost(self, _keys: StreamKeys, lost: list[str]) -> None:
        # Called by a thread.
        for message in self._in_flight.find(lost).values():
            if message is not None:
                message.lease_lost = True
        call_in_loop(self._scope, self._workers.lose_leases, lost)

    def _set_fenced(self) -> None:
        self._commands.is_fenced = True
        self._fenced = ConsumerNameTaken(
            f"another process runs as worker_name={self.worker_name!r} in group {self.config.group!r} of stream "
            f"{self.stream!r}, so this one stops. Give every process a unique worker_name, or leave it out"
        )
        self._stopping.set_from_outside()

    def _on_exit_request(self, error: BaseException) -> None:
        # The handler's message is settled as failed; no other handler starts, and run() raises the error.
        self._exit = error
        self._in_flight.close()
        self._stopping.set_from_outside()

    def _raise_exit(self) -> None:
        error, self._exit = self._exit, None
        if error is not None:
            raise error

    def _renewable_ids(self) -> list[str]:
        overdue = {message.id for message in hung(self._workers.running, self.config.lease_ms / 1000)}
        return [entry_id for entry_id in self._in_flight.unsettled_ids() if entry_id not in overdue]

    async def _dead_letter_once(self) -> None:
        await self._in_flight.has_rejected.wait()
        self._in_flight.has_rejected.clear()
        await self._persist(self._dead_letter_rejected)

    async def _dead_letter_rejected(self) -> None:
        in_flight = self._in_flight
        while in_flight.rejected:
            rejected = in_flight.rejected[0]
            message = in_flight.find([rejected.id]).get(rejected.id)
            if message is not None:
                delivery = Delivery(in_flight, [message])
                await delivery.dead_letter(message, rejected.reason, rejected.error, rejected.fields)
            in_flight.rejected.popleft()


async def _directly(step: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await step(*args)
