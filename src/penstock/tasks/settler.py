"""Brings outcomes to where they belong: results to the back-end and then to the queue, failures back or to the dead."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.errors import PenstockError
from penstock.runtime.aio import Event, Lock, pause, shielded
from penstock.task import Result, Status, Task
from penstock.tasks.queue import TaskQueue
from penstock.tasks.retry import Again, GiveUp
from penstock.tasks.runner import Failed, Outcome, follow_ups
from penstock.tasks.saving import save_all
from penstock.tasks.tally import WorkerTally

logger = logging.getLogger("penstock.tasks")
BATCH = 500
_LINGER_S = 0.002  # results of this moment travel together
_UNSAVED_DELAY_S = 1.0
_MAX_UNSAVED_DELAY_S = 60.0


class Settler:
    """Settles what the hands of one worker have done.

    Guarantees: a result is saved in the back-end, and follow-ups are queued, before the task is acknowledged. When
    saving fails, the task is not acknowledged and runs again later, without counting an attempt.
    """

    def __init__(
        self,
        queue: TaskQueue,
        backend: Any,
        tally: WorkerTally,
        save_timeout_s: float,
        saves_errors: bool,
        on_settled: Callable[[Task], Awaitable[None]] | None = None,
    ) -> None:
        self._on_settled = on_settled
        self._queue, self._backend, self._tally = queue, backend, tally
        self._save_timeout_s, self._saves_errors = save_timeout_s, saves_errors
        self._lock = threading.Lock()
        self._done: list[tuple[Task, Result]] = []
        self._flushing = Lock()
        self._under_way = 0
        self._unsaved = 0  # failures of the back-end in a row
        self.dirty = Event()

    def __len__(self) -> int:
        return len(self._done) + self._under_way

    async def settle(self, task: Task, outcome: Outcome) -> None:
        """Take in what became of a task; results are sent on in batches, failures at once."""
        if isinstance(outcome, Failed):
            await self.fail(outcome)
            return
        with self._lock:
            self._done.append((task, outcome))
            # Counted before another hand adds one: of two that count two, neither would be the first and call.
            if len(self._done) == 1 or len(self._done) >= BATCH:
                self.dirty.set()

    def let_go(self, task: Task, *, has_run: bool) -> None:
        """Leave a task to its lease when the queue cannot be told: renewed, it would be with us for ever."""
        let_go = getattr(self._queue, "let_go", None)
        if let_go is not None:
            let_go(task.id, has_run=has_run)

    async def fail(self, failed: Failed) -> None:
        """Give a task back, or up."""
        task, verdict = failed.task, failed.verdict
        text = f"{failed.error}: {failed.text}"
        if isinstance(verdict, Again):
            is_ours = await self._queue.nack(
                task.id, verdict.delay_s, error=text, counts=verdict.counts, max_retry=task.attempts + 1
            )
            outcome = "retry" if verdict.counts else "snooze"
        else:
            is_ours = await self._give_up(failed, verdict)
            outcome = "dead"
        self._tally.count(task.kind, outcome if is_ours else "refused")
        if self._on_settled is not None:
            await self._on_settled(task)

    async def _give_up(self, failed: Failed, verdict: GiveUp) -> bool:
        task = failed.task
        if self._saves_errors and self._backend is not None:
            result = Result(
                task_id=task.id, kind=task.kind, status=Status.ERROR, error=f"{failed.error}: {failed.text}",
                attempts=task.attempts + 1,
            )  # fmt: skip
            if not await self._save([(task, result)]):
                return False
        return await self._queue.bury(task.id, verdict.reason, error=failed.error, text=failed.text)

    async def run_once(self, wait_s: float | None = None) -> None:
        """Wait for results, for a moment longer if they are few, and send them on."""
        if not await self.dirty.wait(wait_s):
            return
        if len(self._done) < BATCH:
            await pause(_LINGER_S)
        await self.flush()

    async def flush(self) -> None:
        """Send on everything that is done."""
        async with self._flushing:
            while self._done:
                with self._lock:
                    self.dirty.clear()
                    rows, self._done = self._done[:BATCH], self._done[BATCH:]
                    self._under_way = len(rows)
                try:
                    await self._finish(rows)
                except BaseException:
                    # Nothing of it is known to be settled: whoever flushes next tries again.
                    with self._lock:
                        self._done[:0] = rows
                        self.dirty.set()
                    raise
                finally:
                    self._under_way = 0

    async def _finish(self, rows: list[tuple[Task, Result]]) -> None:
        if self._backend is not None:
            rows = await self._save(rows)
            if not rows:
                return
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
        if self._on_settled is not None:
            for task, _ in rows:
                await self._on_settled(task)

    async def _save(self, rows: list[tuple[Task, Result]]) -> list[tuple[Task, Result]]:
        """Save results; return those that are stored. The tasks of the others have been given back."""
        stored, error = await self._try_to_save(rows)
        if error is None:
            self._unsaved = 0
            return stored
        if len(rows) == 1 or isinstance(error, TimeoutError):
            await self._put_off(rows, error)
            return []
        # One of them may be to blame: the others must not wait for it. When none can be saved, it is the back-end.
        saved: list[tuple[Task, Result]] = []
        for place, row in enumerate(rows):
            stored, error = await self._try_to_save([row])
            saved += stored
            if error is not None and not saved and place:
                await self._put_off(rows[place:], error)
                break
            if error is not None:
                await self._put_off([row], error)
        return saved

    async def _try_to_save(
        self, rows: list[tuple[Task, Result]]
    ) -> tuple[list[tuple[Task, Result]], BaseException | None]:
        stored: list[Result] = []
        failures: list[BaseException] = []

        async def save() -> None:
            try:
                stored.extend(await save_all(self._backend, [result for _, result in rows]))
            except Exception as error:
                failures.append(error)

        await shielded(self._save_timeout_s, save)
        if len(stored) == len(rows):
            return [(task, result) for (task, _), result in zip(rows, stored, strict=True)], None
        return [], failures[0] if failures else TimeoutError(f"saving took longer than {self._save_timeout_s} s")

    async def _put_off(self, rows: list[tuple[Task, Result]], error: BaseException) -> None:
        delay_s = min(_UNSAVED_DELAY_S * 2 ** min(self._unsaved, 10), _MAX_UNSAVED_DELAY_S)
        self._unsaved += 1
        self._tally.backend_failures += 1
        logger.error("%d result(s) could not be saved, their tasks run again in %.0f s: %r", len(rows), delay_s, error)
        for task, _ in rows:
            try:
                await self._queue.nack(task.id, delay_s, error=f"not saved: {error}", counts=False)
            except PenstockError as failure:
                logger.warning("task %s could not be given back, it will be an orphan: %s", task.id, failure)
                self.let_go(task, has_run=True)
            self._tally.count(task.kind, "unsaved")
            if self._on_settled is not None:
                await self._on_settled(task)
