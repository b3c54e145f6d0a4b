"""Runs the handler on what the inbox gives, and carries out what the policy says about the outcome."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from penstock.counters import Tally
from penstock.delivery.ack_buffer import AckBuffer
from penstock.delivery.callables import Call
from penstock.delivery.dead_letters import DeadLetterWriter
from penstock.delivery.decoding import Rejected
from penstock.delivery.group_commands import GroupCommands, Parking
from penstock.delivery.inbox import Batch, Inbox
from penstock.errors import (
    EXITS,
    NOT_OF_ONE_MESSAGE,
    LeaseLost,
    OutOfMemory,
    PenstockError,
    Snooze,
    WorkerDied,
    text_of,
)
from penstock.events import Emit, EventName
from penstock.model import StreamMessage
from penstock.policy import Backoff, GiveUp, Limits, Reason, Retry, Verdict, after_failure, before_run
from penstock.runtime.aio import Activity, Cancelled, Lock, WaitQueue, comes_from_outside, pause

logger = logging.getLogger("penstock.streams")
_SETTLED = object()
_PATIENCE_S = 5.0  # of a last run with handlers that it must not have beside it; nothing new begins meanwhile
_POLL_S = 0.005
ErrorHook = Callable[[BaseException, list[StreamMessage]], Awaitable[Any]]


class HandlerTimeout(PenstockError):
    """The handler ran longer than handler_timeout_ms."""


class RunningCall:
    """What one worker does at the moment, so that others can interrupt exactly that."""

    __slots__ = ("cause", "is_busy", "job", "messages", "started_s")

    def __init__(self) -> None:
        self.messages: list[StreamMessage] = []
        self.is_busy = False
        self.started_s = 0.0
        self.job: Activity | None = None
        self.cause: PenstockError | None = None

    def interrupt(self, cause: PenstockError) -> None:
        """End the running call with the cause; a plain function in a thread cannot be ended and goes on."""
        if self.job is not None and self.cause is None:
            self.cause = cause
            self.job.interrupt()


class Workers:
    """Handles batches. One instance serves all workers of a consumer, each with a slot of its own."""

    def __init__(
        self,
        inbox: Inbox,
        acks: AckBuffer,
        commands: GroupCommands,
        dead_letter_writer: DeadLetterWriter,
        tally: Tally,
        emit: Emit,
        call: Call,
        error_hook: ErrorHook | None,
        limits: Limits,
        backoff: Backoff,
        batch_limit: int,
        on_parked: Callable[[], None],
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self._inbox, self._acks, self._commands, self._dead_letter_writer = inbox, acks, commands, dead_letter_writer
        self._tally, self._emit, self._call, self._error_hook = tally, emit, call, error_hook
        self._limits, self._backoff, self._batch_limit = limits, backoff, batch_limit
        self._on_parked, self._on_exit = on_parked, on_exit
        self._in_settlement: set[str] = set()
        self._chance = random.Random()
        self._alone = Lock()
        self._is_one_alone = False  # a message that may have killed its holders is on its last run, or about to be
        self._others = WaitQueue()
        self.slots: list[RunningCall] = []

    async def work(self, persist: Callable[..., Awaitable[Any]]) -> None:
        """Handle batches until the inbox is closed; `persist` repeats a step through outages of Redis."""
        slot = RunningCall()
        slot.job = Activity.current()
        self.slots.append(slot)
        try:
            while (batch := await self._next(slot)) is not None:
                await self.handle(slot, batch, persist)
        finally:
            self.slots.remove(slot)

    async def _next(self, slot: RunningCall) -> Batch | None:
        while True:
            try:
                return await self._inbox.take(self._batch_limit)
            except Cancelled:
                if slot.cause is None:
                    raise
                self._resume(slot)  # meant for a call that had just ended

    @staticmethod
    def _resume(slot: RunningCall) -> None:
        slot.cause = None
        Activity.resume()

    async def drain(self, persist: Callable[..., Awaitable[Any]]) -> None:
        """Handle what is in the inbox now."""
        slot = RunningCall()
        slot.job = Activity.current()
        self.slots.append(slot)
        try:
            while (batch := self._inbox.take_now(self._batch_limit)) is not None:
                await self.handle(slot, batch, persist)
        finally:
            self.slots.remove(slot)

    async def handle(self, slot: RunningCall, batch: Batch, persist: Callable[..., Awaitable[Any]]) -> None:
        """Run the handler once and settle every message of the batch."""
        if batch.is_last_chance:
            # Should it take the process down, no other message may be on its last run or done and not yet acknowledged.
            async with self._alone:
                await self._run_last(slot, batch, persist)
            return
        try:
            slot.is_busy = True  # before the look: of a last run and this one, one waits
            while self._is_one_alone:
                slot.is_busy = False
                await self._others.wait_until(lambda: not self._is_one_alone)
                slot.is_busy = True
            await self._run(slot, batch, persist)
        finally:
            slot.is_busy = False

    async def _run_last(self, slot: RunningCall, batch: Batch, persist: Callable[..., Awaitable[Any]]) -> None:
        if batch.is_suspect:
            # Nor may another one take it down: it would die with a neighbour, and its chances are used up.
            self._is_one_alone = True
        try:
            deadline_s = time.monotonic() + _PATIENCE_S
            while self._is_one_alone and self._is_any_busy() and time.monotonic() < deadline_s:
                await pause(_POLL_S)
            await self._run(slot, batch, persist)
            await persist(self._acks.flush)
        finally:
            self._is_one_alone = False
            self._others.call(len(self.slots))

    def _is_any_busy(self) -> bool:
        return any(slot.is_busy for slot in list(self.slots))

    async def _run(self, slot: RunningCall, batch: Batch, persist: Callable[..., Awaitable[Any]]) -> None:
        messages = batch.messages
        if batch.is_again:
            messages = await persist(self._admit, messages)
            if not messages:
                return
        slot.messages, slot.started_s = messages, time.monotonic()
        error: BaseException | None = None
        returned: list[str] | None = []
        try:
            returned = await self._call(messages)
        except BaseException as raised:
            if isinstance(raised, Cancelled) and slot.cause is not None:
                error = slot.cause
            elif comes_from_outside(raised):
                raise
            else:
                error = raised
        finally:
            slot.messages = []
        if slot.cause is not None:
            self._resume(slot)  # also when the handler swallowed its cancellation, or raised something else for it
        ids = [message.id for message in messages]
        # Of the questions nearly always one of the first two is answered with yes, and they cost nothing.
        if error is None and (returned is None or returned == ids or _texts(returned).issuperset(ids)):
            self._acks.done(messages, ids, batch.is_again)
        else:
            verdicts = self._verdicts(messages, error)
            if error is not None and not isinstance(error, LeaseLost):
                await self._report(error, messages, verdicts)
            await persist(self._settle_rest, messages, returned or [], error, verdicts, batch.is_again)
        if isinstance(error, EXITS):
            self._on_exit(error)

    async def _admit(self, messages: list[StreamMessage]) -> list[StreamMessage]:
        # Redelivered messages: dead-letter those that had their chances, write down that the others begin.
        admitted = []
        held = self._inbox.held.find([message.id for message in messages])
        for message in messages:
            if message.id not in held:
                continue
            verdict = before_run(message.delivery_count, message.attempts, None, 0, self._limits)
            if verdict is None:
                admitted.append(message)
            else:
                await self.dead_letter(message, verdict.reason, WorkerDied.in_attempt(message.attempts))
        if not admitted:
            return []
        answers = await self._commands.begin([(m.id, m.delivery_count, m.attempts) for m in admitted])
        lost = [m for m, ours in zip(admitted, answers, strict=True) if not ours]
        if lost:
            self.lose(lost)
        running = [m for m, ours in zip(admitted, answers, strict=True) if ours]
        for message in running:
            message.delivery_count += 1
            message.attempts += 1
        return running

    def _verdicts(self, messages: list[StreamMessage], error: BaseException | None) -> dict[str, Verdict]:
        return {
            m.id: after_failure(error, m.delivery_count, m.attempts, self._limits, self._backoff, self._chance)
            for m in messages
        }

    async def _settle_rest(
        self, messages: list[StreamMessage], returned: list[str], error: BaseException | None,
        verdicts: dict[str, Verdict], is_again: bool,
    ) -> None:  # fmt: skip
        # Called again after an outage: what was settled before is not held any more and is passed over.
        wanted, held = _texts(returned), self._inbox.held
        finished = [m for m in messages if m.id in wanted]
        self._acks.done(finished, [m.id for m in finished], is_again)
        found = held.find([m.id for m in messages if m.id not in wanted])
        failed = [m for m in messages if found.get(m.id) is m]
        if not failed or isinstance(error, LeaseLost):
            held.finish(failed)
            return
        parkings, parked = [], []
        for message in failed:
            verdict = verdicts[message.id]
            if isinstance(verdict, GiveUp):
                await self.dead_letter(message, verdict.reason, error)
            else:
                back = 0 if verdict.counts else 1
                parked.append(message)
                parkings.append(
                    Parking(message.id, verdict.after_ms, message.delivery_count - back, message.attempts - back)
                )
        await self._park(parked, parkings)

    async def _park(self, messages: list[StreamMessage], parkings: list[Parking]) -> None:
        if not parkings:
            return
        with self._settling(messages):
            answers = await self._commands.park(parkings)
            self._inbox.held.finish(messages)
        lost = [m for m, ours in zip(messages, answers, strict=True) if not ours]
        self._tally.count(retried=len(messages) - len(lost))
        self._emit(EventName.RETRIED, count=len(messages) - len(lost))
        if lost:
            self.lose(lost)
        self._on_parked()

    async def dead_letter(
        self, message: StreamMessage, reason: Reason, error: BaseException | None, fields: Sequence[bytes] | None = None
    ) -> None:
        """Move a message to the dead letters; one that they do not take stays pending, and is tried again later."""
        entry = Rejected(message.id, reason, error, message.delivery_count, message.attempts, fields)
        settle = partial(self._commands.dead_letter, message.id)
        try:
            with self._settling([message]):
                written = await self._dead_letter_writer.write(entry, self._commands.consumer, settle, message)
                if written is not None:
                    self._inbox.held.finish([message])
        except OutOfMemory:
            await self._put_off(message, self._backoff.max_ms)  # no room for the record
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception:
            await self._put_off(message, self._dead_letter_writer.refused(message.id))
        else:
            if written is None:
                self.lose([message])

    async def _put_off(self, message: StreamMessage, delay_ms: int) -> None:
        await self._park([message], [Parking(message.id, delay_ms, message.delivery_count, message.attempts)])

    @contextmanager
    def _settling(self, messages: list[StreamMessage]) -> Iterator[None]:
        """Let no heartbeat take messages for lost that are not pending any more: the answer tells whose they were."""
        ids = [message.id for message in messages]
        self._in_settlement.update(ids)
        try:
            yield
        finally:
            self._in_settlement.difference_update(ids)

    async def _report(self, error: BaseException, messages: list[StreamMessage], verdicts: dict[str, Verdict]) -> None:
        self._tally.count(errors=1)
        # Those that are given up are logged with their dead letters.
        again = [m for m in messages if isinstance(verdicts[m.id], Retry)]
        if again:
            first, verdict, commands = again[0], verdicts[again[0].id], self._commands
            is_snooze = isinstance(error, Snooze)
            logger.log(
                logging.INFO if is_snooze else logging.WARNING,
                "the handler of %s/%s failed for message %s%s in attempt %d: %s; it comes again in %.1f s",
                commands.keys.stream, commands.group, first.id, f" and {len(again) - 1} more" if again[1:] else "",
                first.attempts, text_of(error, repr), verdict.after_ms / 1000 if isinstance(verdict, Retry) else 0,
                exc_info=None if is_snooze else error,
                extra={
                    "stream": commands.keys.stream, "group": commands.group, "id": first.id, "attempt": first.attempts,
                    "ids": [m.id for m in again],
                },
            )  # fmt: skip
        if self._error_hook is None:
            return
        try:
            await self._error_hook(error, messages)
        except BaseException as failure:
            if comes_from_outside(failure):
                raise
            logger.exception("the error_hook failed")

    def lose_leases(self, ids: list[str]) -> None:
        """Let go of messages by their ids, whether a worker took them or not."""
        with self._inbox.held.lock:
            held = self._inbox.held.find(set(ids) - self._in_settlement)
            waiting = self._inbox.held.drop([entry_id for entry_id, message in held.items() if message is None])
        if waiting:
            self._tally.count(lease_lost=len(waiting))
            self._emit(EventName.LEASE_LOST, ids=waiting)
        taken = [message for message in held.values() if message is not None]
        if taken:
            self.lose(taken)

    def lose(self, messages: list[StreamMessage]) -> None:
        """Let go of messages that belong to another consumer now, and tell their handlers."""
        for message in messages:
            message.lease_lost = True
        self._inbox.held.finish(messages)
        self._tally.count(lease_lost=len(messages))
        self._emit(EventName.LEASE_LOST, ids=[m.id for m in messages])
        lost = {id(m) for m in messages}
        for slot in self.slots:
            if slot.messages and all(id(m) in lost or m.lease_lost for m in slot.messages):
                slot.interrupt(LeaseLost(f"message {slot.messages[0].id} belongs to another consumer now"))

    def interrupt_overdue(self, timeout_s: float) -> None:
        """End calls that have been running for too long."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.messages and now - slot.started_s > timeout_s:
                slot.interrupt(HandlerTimeout(f"the handler ran longer than {timeout_s} s"))


def _texts(returned: Iterable[object]) -> set[str]:
    # A handler may return anything, also what no set can hold: whatever is no text is no id.
    return {item for item in returned if isinstance(item, str)}
