"""Runs the handler on deliveries, and settles them as the policy decides."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.delivery.callables import HandlerCall, RunningCall
from penstock.delivery.delivery import Delivery
from penstock.delivery.in_flight import InFlight
from penstock.errors import EXITS, HandlerTimeout, LeaseLost, Snooze, text_of
from penstock.model import StreamMessage
from penstock.policy import GiveUp, RetryAfter, Verdict, after_failure
from penstock.runtime.aio import Cancelled, Lock, WaitQueue, comes_from_outside, pause

logger = logging.getLogger("penstock.streams")
_PATIENCE_S = 5.0  # how long a last run waits for other handlers to end; no new ones begin meanwhile
_POLL_S = 0.005
ErrorHook = Callable[[BaseException, list[StreamMessage]], Awaitable[Any]]
Persist = Callable[..., Awaitable[Any]]  # runs a step, and retries it during outages of Redis


class DeliveryWorkers:
    """Takes deliveries, calls the handler and settles them. One instance serves all workers."""

    def __init__(
        self,
        in_flight: InFlight,
        call: HandlerCall,
        error_hook: ErrorHook | None,
        batch_limit: int,
        flush: Callable[[], Awaitable[None]],
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self._in_flight, self._call, self._error_hook, self._batch_limit = in_flight, call, error_hook, batch_limit
        self._flush, self._on_exit = flush, on_exit
        timeout_ms, self._rng = in_flight.context.config.handler_timeout_ms, random.Random()
        self._timeout_s = math.inf if timeout_ms is None else timeout_ms / 1000
        self._alone, self._suspect_begins = Lock(), Lock()
        self._is_suspect_running = False  # a message that may have killed its holders is on its last run, or next
        self._others = WaitQueue()
        self.running: list[RunningCall] = []

    async def work(self, persist: Persist) -> None:
        """Handle messages until InFlight is closed."""
        with self._worker() as worker:
            while True:
                try:
                    delivery = await self._in_flight.take(self._batch_limit)
                except Cancelled:
                    if worker.cause is None:
                        raise
                    worker.resume()  # meant for a call that had just ended
                    continue
                if delivery is None:
                    return
                await (self._run_last if delivery.is_last_chance else self._run)(worker, delivery, persist)

    async def handle_waiting(self, persist: Persist) -> None:
        """Handle the messages that are waiting now."""
        with self._worker() as worker:
            while (delivery := self._in_flight.take_now(self._batch_limit)) is not None:
                await (self._run_last if delivery.is_last_chance else self._run)(worker, delivery, persist)

    @contextmanager
    def _worker(self) -> Iterator[RunningCall]:
        worker = RunningCall()
        self.running.append(worker)
        try:
            yield worker
        finally:
            self.running.remove(worker)

    async def _run_last(self, worker: RunningCall, delivery: Delivery, persist: Persist) -> None:
        # In case it kills the process, no other message may be on its last run, or finished but not acknowledged.
        async with self._alone:
            if delivery.is_suspect:
                # No other handler may kill the process either, because this message has no attempt left.
                self._is_suspect_running = True
            try:
                deadline_s = time.monotonic() + _PATIENCE_S
                while self._is_suspect_running and self._is_any_busy() and time.monotonic() < deadline_s:
                    await pause(_POLL_S)
                await self._run(worker, delivery, persist)
                await persist(self._flush)
            finally:
                self._is_suspect_running = False
                self._others.call(len(self.running))

    def _is_any_busy(self) -> bool:
        return any(worker.is_busy for worker in list(self.running))

    async def _run(self, worker: RunningCall, delivery: Delivery, persist: Persist) -> None:
        # Runs the handler once and settles every message of the delivery.
        try:
            worker.is_busy = True  # before the check: either a last run waits for this one, or this one for it
            while self._is_suspect_running and not delivery.is_last_chance:
                worker.is_busy = False
                await self._others.wait_until(lambda: not self._is_suspect_running)
                worker.is_busy = True
            if delivery.is_again and not await self._begin(delivery, persist):
                return
            messages = delivery.messages
            returned: list[str] | None = None
            error: BaseException | None = None
            worker.deadline_s, worker.messages = time.monotonic() + self._timeout_s, messages
            try:
                returned = await self._call(messages)
            except BaseException as raised:
                is_interrupted = isinstance(raised, Cancelled) and worker.cause is not None
                if not is_interrupted and comes_from_outside(raised):
                    raise
                error = worker.cause if is_interrupted else raised
            finally:
                worker.messages = ()
            if worker.cause is not None:
                worker.resume()  # also if the handler swallowed its cancellation, or raised another error
            ids = [message.id for message in messages]
            # Nearly always, one of the first two checks, which are cheap, succeeds.
            if error is None and (returned is None or returned == ids or _texts(returned).issuperset(ids)):
                delivery.finish(messages, ids)
            else:
                await self._failed(delivery, persist, returned or [], error)
        finally:
            worker.is_busy = False

    async def _begin(self, delivery: Delivery, persist: Persist) -> bool:
        if not delivery.is_suspect:
            return bool(await persist(delivery.begin))
        # One after the other: one that kills the process takes none along that is recorded as begun and is not.
        async with self._suspect_begins:
            return bool(await persist(delivery.begin))

    async def _failed(
        self, delivery: Delivery, persist: Persist, returned: list[str], error: BaseException | None
    ) -> None:
        config = self._in_flight.context.config
        limits, backoff = config.limits, config.backoff
        verdicts = {
            m.id: after_failure(error, m.delivery_count, m.attempts, limits, backoff, self._rng)
            for m in delivery.messages
        }
        if error is not None and not isinstance(error, LeaseLost):
            await self._report(error, delivery.messages, verdicts)
        await persist(self._settle, delivery, _texts(returned), error, verdicts)
        if isinstance(error, EXITS):
            self._on_exit(error)

    async def _settle(
        self, delivery: Delivery, done: set[str], error: BaseException | None, verdicts: dict[str, Verdict]
    ) -> None:
        # Called again after an outage: skips messages that are settled, and so no longer in flight.
        finished = [message for message in delivery.messages if message.id in done]
        delivery.finish(finished, [message.id for message in finished])
        failed = delivery.unsettled()
        if isinstance(error, LeaseLost):
            self._in_flight.release(failed)
            return
        retries = []
        for message in failed:
            verdict = verdicts[message.id]
            if isinstance(verdict, GiveUp):
                await delivery.dead_letter(message, verdict.reason, error)
            else:
                retries.append((message, verdict))
        await delivery.retry(retries)

    async def _report(self, error: BaseException, messages: list[StreamMessage], verdicts: dict[str, Verdict]) -> None:
        self._in_flight.context.tally.count(errors=1)
        # Those that are dead-lettered are logged with their records.
        again = [m for m in messages if isinstance(verdicts[m.id], RetryAfter)]
        if again:
            first, verdict, commands = again[0], verdicts[again[0].id], self._in_flight.context.commands
            is_snooze = isinstance(error, Snooze)
            logger.log(
                logging.INFO if is_snooze else logging.WARNING,
                "handler for %s/%s %s message %s%s in attempt %d: %s; retrying in %.1f s",
                commands.keys.stream, commands.group, "postponed" if is_snooze else "failed on", first.id,
                f" and {len(again) - 1} more" if again[1:] else "",
                first.attempts, text_of(error, repr), verdict.after_ms / 1000 if isinstance(verdict, RetryAfter) else 0,
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
            logger.exception("error_hook raised an error")

    def lose_leases(self, lost: list[str]) -> None:
        """Remove messages that now belong to other consumers, and interrupt calls that have no others."""
        self._in_flight.lose(lost)
        for worker in self.running:
            messages = worker.messages  # with threads, the call may end at any moment
            if messages and all(message.lease_lost for message in messages):
                worker.interrupt(LeaseLost(f"lost the lease of {_named(messages)} to another consumer"))

    def interrupt_overdue(self) -> None:
        """Interrupt calls that have exceeded their timeout."""
        commands = self._in_flight.context.commands
        for worker in self.running:
            messages = worker.messages
            if messages and worker.is_overdue(time.monotonic()):
                worker.interrupt(
                    HandlerTimeout(
                        f"handler for {commands.keys.stream}/{commands.group} exceeded "
                        f"handler_timeout_ms={self._timeout_s * 1000:.0f} on {_named(messages)}"
                    )
                )


def _named(messages: Sequence[StreamMessage]) -> str:
    first = messages[0].id
    return f"message {first}" if len(messages) == 1 else f"{len(messages)} messages from {first} on"


def _texts(returned: Iterable[object]) -> set[str]:
    # A handler may return anything, even unhashable objects; only a str can be an id.
    return {item for item in returned if isinstance(item, str)}
