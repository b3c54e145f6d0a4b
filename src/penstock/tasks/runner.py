"""Runs tasks, and decides what happens to each afterwards."""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from penstock.counters import WorkerTally
from penstock.delivery.callables import RunningCall, awaitable
from penstock.errors import PenstockError, Skip, Snooze, WorkerStopped, name_of, text_of
from penstock.policy import GiveUp, RetryAfter, Verdict
from penstock.runtime.aio import Cancelled, Flag, Threads, WaitQueue, comes_from_outside
from penstock.task import Result, Status, Task, encode
from penstock.tasks.handlers import Handlers, TaskHandler
from penstock.tasks.queue import TaskQueue

logger = logging.getLogger("penstock.tasks")


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that brought no result."""

    task: Task
    verdict: Verdict
    error: str  # its class
    text: str
    cause: BaseException


Outcome: TypeAlias = Result | Failed


class TaskInbox:
    """The tasks of one worker that have not begun."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._waiters = WaitQueue()
        self.is_closed = False
        self.has_room = Flag()  # a task was taken

    def __len__(self) -> int:
        return len(self._tasks)

    def put(self, tasks: Iterable[Task]) -> None:
        """Take tasks in."""
        before = len(self._tasks)
        self._tasks.extend(tasks)
        self._waiters.call(len(self._tasks) - before)

    async def take(self) -> Task | None:
        """Return the next task, as soon as there is one; None = the inbox is closed."""
        while True:
            try:
                task = self._tasks.popleft()
            except IndexError:
                if self.is_closed:
                    return None
                await self._waiters.wait_until(lambda: bool(self._tasks) or self.is_closed)
                continue
            if not self.has_room.is_set():
                self.has_room.set()
            return task

    def close(self) -> list[Task]:
        """Hand out nothing more; return the tasks that are left."""
        self.is_closed = True
        left = []
        while True:
            try:
                left.append(self._tasks.popleft())
            except IndexError:
                break
        self._waiters.call(1_000_000)
        return left


class TaskRunner:
    """Runs tasks with the handlers of their kinds."""

    def __init__(self, handlers: Handlers, tally: WorkerTally, threads: Threads, queue: TaskQueue) -> None:
        self._tally, self._max_retry = tally, int(getattr(queue, "max_retry", 3))
        self._queue_name = str(getattr(queue, "name", ""))
        # Raises EncodeError for a follow-up that the queue would refuse.
        self._encode_task: Callable[[Task], bytes] = getattr(queue, "encode_task", encode)
        self._rng = random.Random()
        self._calls: dict[str, tuple[TaskHandler, Callable[..., Awaitable[Any]]]] = {
            handler.kind: (handler, awaitable(handler.function, threads, f"the handler for {handler.kind!r}"))
            for handler in handlers
        }

    async def run(self, task: Task, running: RunningCall) -> Outcome:
        """Run a task; whatever its handler does, an outcome is returned."""
        handler, call = self._calls[task.kind]
        started_at, started_s = datetime.now(UTC), time.perf_counter()
        timeout_s = task.timeout_s or handler.timeout_s
        running.deadline_s, running.messages = time.monotonic() + (timeout_s or math.inf), [task]
        error: BaseException | None = None
        data: Any = None
        try:
            data = await call(task)
        except BaseException as raised:
            if comes_from_outside(raised) and not (isinstance(raised, Cancelled) and running.cause is not None):
                raise
            error = raised
        finally:
            running.messages = ()
        if running.cause is not None:
            error = running.cause  # also when the handler swallowed its cancellation
            running.resume()
        self._tally.record_duration(task.kind, time.perf_counter() - started_s)
        if error is None or isinstance(error, Skip):
            return self._result(task, handler, data, error, started_at)
        return self._failed(task, handler, error)

    def _result(
        self, task: Task, handler: TaskHandler, data: object, skipped: Skip | None, started_at: datetime
    ) -> Outcome:
        if isinstance(data, Result):
            result = msgspec.structs.replace(data, task_id=task.id, kind=task.kind, attempts=task.attempts)
        elif skipped is not None:
            result = Result(
                task_id=task.id, kind=task.kind, status=Status.SKIP, error=text_of(skipped) or None,
                attempts=task.attempts, started_at=started_at,
            )  # fmt: skip
        else:
            result = Result(task_id=task.id, kind=task.kind, data=data, attempts=task.attempts, started_at=started_at)
        if data is not None:
            try:
                encode(result)
                for then in follow_ups(task, result):
                    self._encode_task(then)  # it gets the result in its payload, and there may be no room
            except PenstockError as error:
                return self._failed(task, handler, error)
        return result

    def _failed(self, task: Task, handler: TaskHandler, error: BaseException) -> Failed:
        if isinstance(error, WorkerStopped):
            verdict: Verdict = RetryAfter(0, counts=False)
        else:
            verdict = handler.retry.after_failure(error, task.attempts, self._max_retry, self._rng)
        level = logging.ERROR if isinstance(verdict, GiveUp) else logging.WARNING
        logger.log(
            logging.INFO if isinstance(error, WorkerStopped | Snooze) else level,
            "handler for %s %s task %s of queue %s in attempt %d: %s; %s",
            task.kind, _ending(error), task.id, self._queue_name,
            task.attempts, text_of(error, repr), _described(verdict),
            exc_info=None if isinstance(error, WorkerStopped | Snooze) else error,
            extra={
                "stream": self._queue_name, "group": self._queue_name, "id": task.id, "kind": task.kind,
                "attempt": task.attempts,
            },
        )  # fmt: skip
        return Failed(task, verdict, name_of(error), text_of(error), error)


def _ending(error: BaseException) -> str:
    if isinstance(error, Snooze):
        return "postponed"
    return "was stopped on" if isinstance(error, WorkerStopped) else "failed on"


def _described(verdict: Verdict) -> str:
    if isinstance(verdict, RetryAfter):
        return f"retrying in {verdict.after_ms / 1000:.1f} s"
    return f"dead-lettering it ({verdict.reason.value})"


def follow_ups(task: Task, result: Result) -> Sequence[Task]:
    """Return the tasks that follow a task that ended well, with its result in their payload."""
    if result.status is not Status.OK:
        return ()
    return [msgspec.structs.replace(then, payload={**then.payload, "result": result.data}) for then in task.then]
