"""InlineWorker: does tasks here and now, one after the other, for tests and scripts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.counters import WorkerTally
from penstock.errors import EXITS
from penstock.runtime.aio import Activity, Threads
from penstock.task import Result, encode
from penstock.tasks.committer import ResultCommitter
from penstock.tasks.handlers import Handlers
from penstock.tasks.queue import TaskQueue
from penstock.tasks.runner import Failed, RunningTask, TaskRunner


class InlineWorker:
    """A worker without activities of its own: nothing runs but what is asked for."""

    def __init__(
        self, queue: TaskQueue, handlers: Handlers, *, results: Any = None, provides: Collection[str] = ()
    ) -> None:
        self.queue, self.provides = queue, frozenset(provides)
        self.kinds = handlers.for_worker(self.provides)
        self.tally = WorkerTally()
        self._runner = TaskRunner(
            handlers, self.tally, Threads(1), int(getattr(queue, "max_retry", 3)), getattr(queue, "encode_task", encode)
        )
        self._committer = ResultCommitter(queue, results, self.tally, 30.0, saves_errors=False)

    async def run_once(self) -> Result | None:
        """Do the next task; return its result, or None when there is no task, or it failed and will be tried again.

        A task that is given up has a result of status `error`.
        """
        return (await self._run_next())[1]

    async def _run_next(self) -> tuple[bool, Result | None]:
        found = await self.queue.pop_many(1, block=False, provides=self.provides, kinds=self.kinds)
        if not found:
            return False, None
        slot = RunningTask()
        slot.job = Activity.current()
        outcome = await self._runner.run(found[0], slot)
        await self._committer.settle(found[0], outcome)
        await self._committer.end()
        if isinstance(outcome, Failed):
            if isinstance(outcome.cause, EXITS):
                raise outcome.cause
            return True, await self.queue.wait_for_result(found[0].id, 0)
        return True, outcome

    async def run_until_empty(self) -> list[Result]:
        """Do tasks until there is none that is due; return the results."""
        results: list[Result] = []
        while True:
            was_found, result = await self._run_next()
            if not was_found:
                return results
            if result is not None:
                results.append(result)
