"""The stage on which the tests of workers play: a back-end in memory, a worker that runs beside the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.task import Result
from penstock.tasks import Handlers, TaskQueue, Worker
from tests.helpers.aio import Task as Call
from tests.helpers.aio import join, start


class MemoryBackend:
    """A result back-end that forgets everything; `failure` may be set to let it fail."""

    def __init__(self) -> None:
        self.saved: dict[str, Result] = {}
        self.failure: Exception | None = None
        self.attempts = 0

    async def save(self, result: Result) -> bool:
        return (await self.save_many([result]))[0]

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        self.attempts += 1
        if self.failure is not None:
            raise self.failure
        answers = []
        for result in results:
            if result.data == "unsavable":
                raise ValueError("this result cannot be saved")
            answers.append(self.saved.setdefault(result.task_id, result) is result)
        return answers

    async def get(self, task_id: str) -> Result | None:
        return self.saved.get(task_id)


def quick(queue: TaskQueue, handlers: Handlers, **options: Any) -> Worker:
    """Returns a worker whose times are short."""
    return Worker(
        queue, handlers, **{"handle_signals": False, "idle_ms": 60_000, "shutdown_grace_ms": 20_000, **options}
    )


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[list[Call]]:
    """Runs workers beside the test; stops them at the end and raises what they raised."""
    calls = [start(worker.run) for worker in workers]
    try:
        yield calls
    finally:
        for worker in workers:
            worker.stop()
        for call in calls:
            await join(call)
