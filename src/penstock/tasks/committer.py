"""Settles outcomes: saves results in the back-end, then in the queue; retries failed tasks or dead-letters them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from penstock.counters import WorkerTally
from penstock.dead_letter_record import traceback_of
from penstock.encode_errors import type_name
from penstock.errors import NOT_OF_ONE_MESSAGE, BackendUnavailable, ConfigurationTypeError, PenstockError, text_of
from penstock.events import Emitter, EventName
from penstock.policy import DelaysById, GiveUp, RetryAfter
from penstock.redis.retry import pause_s
from penstock.runtime.aio import Flag, Lock, pause, shielded
from penstock.task import Result, Status, Task
from penstock.tasks.queue import TaskQueue
from penstock.tasks.runner import Failed, Outcome, follow_ups

logger = logging.getLogger("penstock.tasks")
BATCH = 500
_LINGER_S = 0.002  # results of this moment travel together
_PATIENCE_S = 60.0  # with a back-end that is unavailable; the results are kept, and their tasks held
_UNEXPLAINED_S = 5.0  # with one that fails for no known reason
_UNAVAILABLE = (BackendUnavailable, OSError)  # TimeoutError is one of the latter
Row: TypeAlias = tuple[Task, Result]


class ResultCommitter:
    """Settles what the handlers of one worker have done.

    Guarantees: a result is saved in the back-end, and follow-ups are queued, before the task is acknowledged. While the
    back-end is away, results are kept and saved when it is back. A task whose result cannot be saved at all is not
    acknowledged, and runs again later without counting an attempt.
    """

    def __init__(
        self,
        queue: TaskQueue,
        backend: Any,
        tally: WorkerTally,
        save_timeout_s: float,
        save_errors: bool,
        emit: Emitter,
        on_settled: Callable[[Task], Awaitable[None]] | None = None,
    ) -> None:
        if backend is not None and not hasattr(backend, "save"):
            raise ConfigurationTypeError(
                f"results must be a result back-end, not {type_name(backend)}: FSBackend('results')"
            )
        self._on_settled, self._emit = on_settled, emit
        self._queue, self._backend, self._tally = queue, backend, tally
        self._save_timeout_s, self._save_errors = save_timeout_s, save_errors
        self._lock = threading.Lock()
        self._done: list[Row] = []
        self._kept: list[Row] = []  # the back-end did not take them, and is asked again at `_again_s`
        self._again_s = 0.0
        self._tries = 0  # consecutive failed saves
        self._since_s: dict[str, float] = {}  # when the back-end first failed to save the result of a held task
        self._postponements = DelaysById()  # of tasks that ran for nothing
        self._flushing = Lock()
        self._under_way = 0
        self._rng = random.Random()
        self.is_backend_away = False
        self.dirty = Flag()

    def __len__(self) -> int:
        return len(self._done) + len(self._kept) + self._under_way

    async def settle(self, task: Task, outcome: Outcome) -> None:
        """Settle the outcome of a task: results in batches, failures at once."""
        if isinstance(outcome, Failed):
            await self.fail(outcome)
            return
        with self._lock:
            self._done.append((task, outcome))
            # Under the lock: if two threads added one and both then counted two, neither would set the flag.
            if len(self._done) == 1 or len(self._done) >= BATCH:
                self.dirty.set()

    def abandon(self, task: Task, *, has_run: bool) -> None:
        """Stop renewing a task that cannot be settled: otherwise this worker would hold it forever."""
        abandon = getattr(self._queue, "abandon", None)
        if abandon is not None:
            abandon(task.id, has_run=has_run)

    def holds(self, task: Task) -> bool:
        """Return whether the task is not known to be lost: nack() would take it from the worker that holds it now."""
        holds = getattr(self._queue, "holds", None)
        return holds is None or bool(holds(task))

    async def fail(self, failed: Failed) -> None:
        """Give a task back, or up."""
        task, verdict = failed.task, failed.verdict
        text = f"{failed.error}: {failed.text}"
        self._emit(EventName.FAILED, id=task.id, kind=task.kind, error=text, attempts=task.attempts)
        if isinstance(verdict, RetryAfter):
            is_ours = self.holds(task) and await self._queue.nack(
                task.id, verdict.after_ms / 1000, error=text, counts=verdict.counts, max_retry=task.attempts
            )
            outcome = "retry" if verdict.counts else "snooze"
            happened = EventName.RETRIED
            fields: dict[str, object] = {"delay_s": verdict.after_ms / 1000, "counts": verdict.counts}
        else:
            is_ours = self.holds(task) and await self._give_up(failed, verdict)
            outcome, happened = "dead", EventName.DEAD_LETTERED
            fields = {"reason": verdict.reason, "error": text}
        if is_ours:
            self._emit(happened, id=task.id, kind=task.kind, **fields)
        else:
            self._emit(EventName.STALE, id=task.id, kind=task.kind, what=happened.value)
        self._tally.count(task.kind, outcome if is_ours else "refused")
        if self._on_settled is not None:
            await self._on_settled(task)

    async def _give_up(self, failed: Failed, verdict: GiveUp) -> bool:
        task = failed.task
        if self._save_errors and self._backend is not None:
            result = Result(
                task_id=task.id, kind=task.kind, status=Status.ERROR, error=f"{failed.error}: {failed.text}",
                attempts=task.attempts, traceback=traceback_of(failed.cause) or None,
            )  # fmt: skip
            is_forged = await self._forged([(task, result)])
            if not is_forged and not await self._save_now((task, result)):
                return False
        return await self._queue.dead_letter(
            task.id, verdict.reason, error=failed.error, text=failed.text, traceback=traceback_of(failed.cause)
        )

    async def _save_now(self, row: Row) -> bool:
        # Runs in the activity that ran the task, which waits while the back-end is unavailable.
        while True:
            saved, kept = await self._save([row])
            if not kept:
                return bool(saved)
            await pause(max(0.0, self._again_s - time.monotonic()))

    async def put_aside(self, task: Task, error: Exception) -> None:
        """Give back a task that cannot be settled, for an error of its own: that is a failed attempt."""
        logger.error(
            "task %s (%s) of %r cannot be settled; retrying later: %s", task.id, task.kind, self._queue,
            text_of(error, repr),
            exc_info=error,
        )  # fmt: skip
        await self._postpone(task, f"settling failed: {text_of(error)}", counts=True)

    async def run_once(self) -> None:
        """Wait for results, for a moment longer if they are few, and send them on."""
        wait_s = self._again_s - time.monotonic() if self._kept else None
        if wait_s is not None and wait_s <= 0:
            self._requeue_kept()
        if not await self.dirty.wait(wait_s):
            return
        if len(self._done) < BATCH:
            await pause(_LINGER_S)
        await self.flush()

    def _requeue_kept(self) -> None:
        with self._lock:
            self._done[:0], self._kept = self._kept, []
            self.dirty.set()

    async def end(self) -> None:
        """Settle everything that is done, on shutdown: tasks whose results cannot be saved now are returned."""
        self._requeue_kept()
        await self.flush()
        with self._lock:
            left, self._kept = self._kept, []
        for task, _ in left:
            await self._postpone(task, "the result was not saved before the worker stopped")

    async def flush(self) -> None:
        """Settle everything that is done."""
        async with self._flushing:
            while self._done:
                with self._lock:
                    self.dirty.clear()
                    rows, self._done = self._done[:BATCH], self._done[BATCH:]
                    self._under_way = len(rows)
                try:
                    await self._finish(rows)
                except BaseException:
                    # Those that are left are not known to be settled: the next flush tries again.
                    with self._lock:
                        self._done[:0] = rows
                        self.dirty.set()
                    raise
                finally:
                    self._under_way = 0

    async def _finish(self, rows: list[Row]) -> None:
        # Removes rows as soon as they are settled, given back or kept.
        if self._backend is not None:
            forged = await self._forged(rows)
            genuine = [row for row in rows if row[0].id not in forged]
            saved, kept = await self._save(genuine) if genuine else ([], [])
            rows[:] = [*(row for row in rows if row[0].id in forged), *saved]
            with self._lock:
                self._kept += kept
        if rows:
            await self._acknowledge_or_put_aside(rows)

    async def _forged(self, rows: Sequence[Row]) -> set[str]:
        # In a back-end the first result for an id stays, too: an entry whose task is open in another must not set it.
        open_elsewhere = getattr(self._queue, "open_elsewhere", None)
        return set() if open_elsewhere is None else await open_elsewhere([task for task, _ in rows])

    async def _acknowledge_or_put_aside(self, rows: list[Row]) -> None:
        try:
            await self._acknowledge(rows)
            rows.clear()
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception as error:
            if len(rows) == 1:
                await self.put_aside(rows[0][0], error)
                rows.clear()
            while rows:  # one of them is the cause, which must not affect the others
                await self._acknowledge_or_put_aside(rows[:1])
                del rows[0]

    async def _acknowledge(self, rows: list[Row]) -> None:
        following = [then for task, result in rows if task.then for then in follow_ups(task, result)]
        if following:
            await self._queue.enqueue_many(following)
        answers = await self._queue.finish_many([result for _, result in rows])
        totals: dict[tuple[str, str], int] = {}
        for (task, result), is_stored in zip(rows, answers, strict=True):
            outcome = (task.kind, result.status.value if is_stored else "refused")
            totals[outcome] = totals.get(outcome, 0) + 1
        for (kind, status), number in totals.items():
            self._tally.count(kind, status, number)
        if self._emit.sink is not None:
            for (task, _), is_stored in zip(rows, answers, strict=True):
                if is_stored:
                    self._emit(EventName.COMPLETED, id=task.id, kind=task.kind)
                else:
                    self._emit(EventName.STALE, id=task.id, kind=task.kind, what="completed")
        if self._on_settled is not None:
            for task, _ in rows:
                await self._on_settled(task)

    # --- the back-end -------------------------------------------------------------------------------

    async def _save(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """Save results; return those that are stored, and those to try again. All others are given back."""
        saved, error = await self._try_to_save(rows)
        failed = [] if error is None else [(row, error) for row in rows]
        if len(rows) > 1 and error is not None and not isinstance(error, TimeoutError):
            # One of them may be the cause: the others must not wait for it. If none can be saved, it is the back-end.
            failed = []
            for index, row in enumerate(rows):
                stored, error = await self._try_to_save([row])
                saved += stored
                if error is not None and not saved and index:
                    failed += [(left, error) for left in rows[index:]]
                    break
                if error is not None:
                    failed.append((row, error))
        if saved and (self._since_s or self._postponements):
            for task, _ in saved:
                self._since_s.pop(task.id, None)
                self._postponements.forget(task.id)
        self._tries = 0 if saved else self._tries + 1
        kept = await self._keep_or_postpone(failed, has_saved_others=bool(saved)) if failed else []
        self.is_backend_away = bool(kept) and not saved and isinstance(failed[-1][1], _UNAVAILABLE)
        return saved, kept

    async def _try_to_save(self, rows: list[Row]) -> tuple[list[Row], BaseException | None]:
        stored: list[Result] = []
        failures: list[BaseException] = []

        async def save() -> None:
            try:
                stored.extend(await _save_all(self._backend, [result for _, result in rows]))
            except Exception as error:
                failures.append(error)

        await shielded(self._save_timeout_s, save)
        if len(stored) == len(rows):
            return [(task, result) for (task, _), result in zip(rows, stored, strict=True)], None
        return [], failures[0] if failures else TimeoutError(
            f"saving results exceeded save_timeout_ms={self._save_timeout_s * 1000:.0f}"
        )

    async def _keep_or_postpone(self, failed: list[tuple[Row, BaseException]], *, has_saved_others: bool) -> list[Row]:
        # By the clock and not by calls: of many results that fail in one moment none waits for longer than the others.
        now, kept = time.monotonic(), list[Row]()
        self._tally.backend_failures += 1
        for row, error in failed:
            task = row[0]
            patience_s = _PATIENCE_S if isinstance(error, _UNAVAILABLE) else 0.0 if has_saved_others else _UNEXPLAINED_S
            if now - self._since_s.setdefault(task.id, now) < patience_s:
                kept.append(row)
            else:
                self._since_s.pop(task.id, None)
                self._tally.count(task.kind, "unsaved")
                await self._postpone(task, f"saving the result failed: {text_of(error)}")
        self._again_s = now + pause_s(self._tries, self._rng, 0.05, 2.0)
        logger.log(
            logging.ERROR if self._tries <= 1 else logging.WARNING,
            "cannot save %d result(s) of %r: %d kept to be saved later, %d tasks will run again: %s",
            len(failed), self._queue, len(kept), len(failed) - len(kept), text_of(failed[0][1], repr),
            exc_info=failed[0][1] if self._tries <= 1 else None,
        )  # fmt: skip
        return kept

    async def _postpone(self, task: Task, why: str, *, counts: bool = False) -> None:
        delay_ms, _ = self._postponements.next_ms(task.id)
        try:
            if self.holds(task):
                await self._queue.nack(task.id, delay_ms / 1000, error=why, counts=counts)
        except PenstockError as failure:
            logger.warning(
                "task %s could not be returned; another worker gets it when its lease expires: %s", task.id, failure
            )
            self.abandon(task, has_run=True)
        if self._on_settled is not None:
            await self._on_settled(task)


async def _save_all(backend: Any, results: Sequence[Result]) -> list[Result]:
    """Save results; return those that are stored now: where an earlier one was kept, that one, if it can be had."""
    if hasattr(backend, "save_many"):
        answers = list(await backend.save_many(results))
    else:
        answers = []
        for result in results:
            answers.append(await backend.save(result))
    stored = []
    for result, is_new in zip(results, answers, strict=True):
        earlier = None
        if is_new is False and hasattr(backend, "get"):
            earlier = await backend.get(result.task_id)
        stored.append(earlier if isinstance(earlier, Result) else result)
    return stored
