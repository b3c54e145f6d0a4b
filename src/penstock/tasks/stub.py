"""StubQueue: the task queue in memory, for tests and for trying things out. Nothing outlives the process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import msgspec

from penstock import task as values
from penstock.dead_letter_limits import DeadLetterLimits
from penstock.dead_letter_record import MAX_TRACEBACK
from penstock.errors import ConfigurationError
from penstock.keys import TaskKeys
from penstock.number_checks import number_of_seconds
from penstock.runtime.aio import Flag
from penstock.serializers import DEFAULT_MAX_BYTES, DEFAULT_MAX_DEPTH, PayloadLimits
from penstock.settings import TaskQueueSettings
from penstock.task import Priority, Result, Status, Task, check_id
from penstock.tasks.entries import when_due
from penstock.tasks.handlers import Limits
from penstock.tasks.lanes import LOWEST_FIRST_EVERY, PRIORITIES, TaskFilter
from penstock.tasks.listed import DeadTask, PendingTask
from penstock.type_checks import check_list

_PERMIT_RETRY_S = 0.02
_LIMITS_EVERY_S = 1.0


@dataclass(slots=True)
class _Entry:
    """An open task: queued, waiting until it is due, or held since `since_s`."""

    task: Task
    runs: int = 0
    due_s: float | None = None
    since_s: float | None = None


class StubQueue:
    """A task queue in the memory of this process, with the same semantics as the others.

    `now` gives the time in seconds: tests may put a clock of their own there.
    """

    def __init__(
        self,
        name: str = "penstock",
        *,
        max_retry: int = 3,
        now: Callable[[], float] = time.time,
        max_payload_bytes: int = DEFAULT_MAX_BYTES,
        max_payload_depth: int = DEFAULT_MAX_DEPTH,
        dead_letter_limits: DeadLetterLimits | Mapping[str, Any] | str | None = None,
    ) -> None:
        limits = PayloadLimits(max_payload_bytes, max_payload_depth)
        self.encode_task: Callable[[Task], bytes] = lambda task: values.encode_task(task, limits)
        self.name, self.max_retry, self.consumer = name, max_retry, f"{name}_stub"
        self._now = now
        self._lock = threading.RLock()
        self._open: dict[str, _Entry] = {}
        self._queued: dict[Priority, deque[str]] = {priority: deque() for priority in PRIORITIES}
        self._unique: dict[str, str] = {}
        self._results: dict[str, Result] = {}
        self.dead: list[DeadTask] = []
        self._dead_letter_limits = DeadLetterLimits.of(dead_letter_limits)
        self._given_up, self._limited_s = 0, 0.0  # since when the dead letters are within their limits
        self._waiters: list[Flag] = []
        self._turn = 0
        self._permits: dict[str, set[str]] = {}  # of each limit, the tasks that run within it
        self._taken_s: dict[str, float] = {}  # up to when beginnings of a rate are taken
        self._reserved: set[tuple[str, str]] = set()
        self._is_renewing = False

    @classmethod
    def from_settings(cls, settings: TaskQueueSettings) -> Self:
        """Return the queue that the settings describe; `url` and `idle_ms` do not apply to it."""
        return cls(max_retry=settings.max_retry, **settings.options)

    # --- producers ----------------------------------------------------------------------------------

    async def enqueue(self, task: Task, *, delay: float | None = None, at: datetime | None = None) -> str:
        """Add a task, now or when it is due; return its id, or that of the open task with the same `unique` text."""
        due = when_due(delay, at)
        self.encode_task(task)  # what no other queue could carry is refused here as well
        with self._lock:
            if task.id in self._open or task.id in self._results:
                return task.id
            if task.unique is not None:
                other = self._unique.setdefault(task.unique, task.id)
                if other != task.id:
                    return other
            entry = self._open[task.id] = _Entry(task)
            if due:
                entry.due_s = self._now() + int(due) / 1000 if due[0] == "+" else int(due) / 1000
            else:
                self._queued[task.priority].append(task.id)
        self._notify()
        return task.id

    async def enqueue_many(self, tasks: Sequence[Task], *, delay: float | None = None) -> list[str]:
        """Add tasks; return the ids as enqueue() does."""
        check_list("tasks", tasks, "enqueue() takes a single task")
        for task in tasks:
            self.encode_task(task)
        return [await self.enqueue(task, delay=delay) for task in tasks]

    # --- consumers ----------------------------------------------------------------------------------

    async def pop(self, block: bool = True, timeout: float = 1) -> Task | None:
        """Take the next task, waiting for one up to `timeout` seconds if `block` is true."""
        found = await self.pop_many(1, block, timeout)
        return found[0] if found else None

    async def pop_many(
        self,
        count: int,
        block: bool = True,
        timeout: float = 1,
        provides: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
    ) -> list[Task]:
        """Take up to `count` tasks that a worker with these capabilities and kinds can handle (None = any)."""
        if count < 1:
            raise ConfigurationError(f"count={count} must be positive")
        deadline, wanted = time.monotonic() + (timeout if block else 0), TaskFilter(provides, kinds)
        while True:
            changed = Flag()
            with self._lock:
                found, wait_s = self._take(count, wanted)
                if not found:
                    self._waiters.append(changed)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            await changed.wait(min(left_s, wait_s))

    def _take(self, count: int, wanted: TaskFilter) -> tuple[list[Task], float]:
        now_s, next_s = self._now(), float("inf")
        for task_id, entry in self._open.items():
            if entry.due_s is not None and entry.since_s is None:
                if entry.due_s <= now_s:
                    entry.due_s = None
                    self._queued[entry.task.priority].append(task_id)
                else:
                    next_s = min(next_s, entry.due_s - now_s)
        self._turn += 1
        found: list[Task] = []
        for priority in reversed(PRIORITIES) if self._turn % LOWEST_FIRST_EVERY == 0 else PRIORITIES:
            queued = self._queued[priority]
            for _ in range(len(queued)):
                if len(found) >= count:
                    break
                entry = self._open[queued[0]]
                if wanted.accepts(entry.task):
                    found.append(self._hand_out(self._open[queued.popleft()]))
                else:
                    queued.rotate(-1)
        return found, max(0.001, next_s)

    def _hand_out(self, entry: _Entry) -> Task:
        entry.since_s = self._now()
        entry.runs += 1
        return msgspec.structs.replace(entry.task, attempts=entry.runs)

    async def ack(self, task_id: str) -> bool:
        """Settle a task as done; return False if no worker holds it."""
        with self._lock:
            return self._settle(task_id) is not None

    def _held_entry(self, task_id: str) -> _Entry | None:
        check_id("task_id", task_id)
        entry = self._open.get(task_id)
        return entry if entry is not None and entry.since_s is not None else None

    def _settle(self, task_id: str) -> _Entry | None:
        entry = self._held_entry(task_id)
        if entry is None:
            return None
        del self._open[task_id]
        if entry.task.unique is not None and self._unique.get(entry.task.unique) == task_id:
            del self._unique[entry.task.unique]
        return entry

    async def nack(
        self, task_id: str, delay: float = 0, *, error: str = "", counts: bool = True, max_retry: int | None = None
    ) -> bool:
        """Return a task to be delivered again after the delay; return False if no worker holds it."""
        when_due(delay, None)
        with self._lock:
            entry = self._held_entry(task_id)
            if entry is None:
                return False
            if counts and entry.runs > (self.max_retry if max_retry is None else max_retry):
                self._dead_letter(task_id, "max_deliveries", "", error)
            else:
                entry.runs -= 0 if counts else 1
                entry.since_s, entry.due_s = None, self._now() + delay
        self._notify()
        return True

    async def dead_letter(
        self, task_id: str, reason: str = "fatal", *, error: str = "", text: str = "", traceback: str = ""
    ) -> bool:
        """Move a task to the dead letters, with an error as its result; return False if no worker holds it."""
        with self._lock:
            is_ours = self._held_entry(task_id) is not None
            if is_ours:
                self._dead_letter(task_id, reason, error, text, traceback)
        self._notify()
        return is_ours

    def _dead_letter(self, task_id: str, reason: str, error: str, text: str, traceback: str = "") -> None:
        entry = self._settle(task_id)
        assert entry is not None
        task = entry.task
        self._given_up += 1
        letter = DeadTask(
            f"0-{self._given_up}", task_id, task.kind, reason, error, text, entry.runs, int(self._now() * 1000),
            TaskKeys(self.name).stream_name(), self.consumer, 0, values.encode(task),
            traceback=traceback[-MAX_TRACEBACK:],
        )  # fmt: skip
        self.dead.append(letter)
        is_overdue = self._now() >= self._limited_s + _LIMITS_EVERY_S
        if is_overdue or self._given_up % self._dead_letter_limits.apply_every == 0:
            self._limit_dead_letters()
        cause = f"{error}: {text}" if error else text
        result = Result(
            task_id=task_id, kind=task.kind, status=Status.ERROR, error=cause, attempts=entry.runs,
            traceback=traceback or None,
        )  # fmt: skip
        self._results.setdefault(task_id, result)

    def _limit_dead_letters(self) -> None:
        now_ms, size, gone = self._now() * 1000, sum(len(letter.data) for letter in self.dead), 0
        for index, letter in enumerate(self.dead[:-1]):  # the newest stays, however large it is
            age_ms = now_ms - letter.dead_at_ms
            if not self._dead_letter_limits.are_exceeded(len(self.dead) - index, age_ms, size):
                break
            size, gone = size - len(letter.data), index + 1
        del self.dead[:gone]
        self._limited_s = self._now()

    async def extend(self, task_id: str) -> bool:
        """Renew the lease of a task; return False if no worker holds it."""
        with self._lock:
            entry = self._held_entry(task_id)
            if entry is not None:
                entry.since_s = self._now()
            return entry is not None

    async def finish_many(self, results: Sequence[Result]) -> list[bool]:
        """Store results and acknowledge their tasks; False for a task that no worker holds or that had a result."""
        with self._lock:
            answers = [self._finish(result) for result in results]
        self._notify()
        return answers

    def _finish(self, result: Result) -> bool:
        if self._settle(result.task_id) is None or result.task_id in self._results:
            return False
        values.encode(result)
        self._results[result.task_id] = result
        return True

    async def admit(self, task: Task, limits: Limits) -> bool:
        """Return whether a task may start within the limits; if not, it is delivered again later."""
        with self._lock:
            entry = self._held_entry(task.id)
            if entry is None:
                return False
            due_s = self._may_begin_at(task, limits)
            if due_s is None:
                return True
            entry.runs -= 1
            entry.since_s, entry.due_s = None, due_s
        return False

    def _may_begin_at(self, task: Task, limits: Limits) -> float | None:
        now_s, scopes = self._now(), limits.concurrency_of(task)
        for scope, most in scopes:
            holders = self._permits.setdefault(scope, set())
            holders -= {task_id for task_id in holders if self._held_entry(task_id) is None}
            if len(holders - {task.id}) >= most:
                return now_s + _PERMIT_RETRY_S
        begins_s = 0.0
        for scope, rate in limits.rates_of(task):
            if (scope, task.id) in self._reserved:
                self._reserved.discard((scope, task.id))
                continue
            self._taken_s[scope] = max(now_s, self._taken_s.get(scope, 0.0)) + rate.per_s / rate.count
            if self._taken_s[scope] - rate.per_s > now_s:
                self._reserved.add((scope, task.id))
                begins_s = max(begins_s, self._taken_s[scope] - rate.per_s)
        if begins_s:
            return begins_s
        for scope, _ in scopes:
            self._permits[scope].add(task.id)
        return None

    async def give_back_permit(self, task: Task, limits: Limits) -> None:
        """Release the permit of a task that has ended."""
        with self._lock:
            for scope, _ in limits.concurrency_of(task):
                self._permits.get(scope, set()).discard(task.id)
        self._notify()

    @contextmanager
    def renewing(self, *_: object) -> Iterator[None]:
        """Keep the leases of all held tasks until the context ends."""
        self._is_renewing = True
        try:
            yield
        finally:
            self._is_renewing = False

    # --- results ------------------------------------------------------------------------------------

    async def push_result(self, result: Result) -> bool:
        """Store a result without settling the task; return False if the task already had one, which stays."""
        values.encode(result)
        with self._lock:
            is_first = self._results.setdefault(result.task_id, result) is result
        self._notify()
        return is_first

    async def get_result(self, task_id: str) -> Result | None:
        """Return the result of a task if there is one."""
        check_id("task_id", task_id)
        return self._results.get(task_id)

    async def wait_for_result(self, task_id: str, timeout: float) -> Result | None:
        """Return the result of a task, waiting up to a number of seconds; None if there is none yet."""
        check_id("task_id", task_id)
        deadline = time.monotonic() + number_of_seconds("timeout", timeout)
        while True:
            changed = Flag()
            with self._lock:
                found = self._results.get(task_id)
                self._waiters.append(changed)
            left_s = deadline - time.monotonic()
            if found is not None or left_s <= 0:
                return found
            await changed.wait(left_s)

    def _notify(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()

    # --- operators ----------------------------------------------------------------------------------

    async def requeue_orphans(self, idle_ms: int = 60_000, max_batch: int = 50) -> int:
        """Make tasks that have been held for `idle_ms` available again; return how many.

        That counts as a failed run; tasks that had their last one go to the dead letters.
        """
        freed = 0
        with self._lock:
            now_s = self._now()
            for task_id, entry in list(self._open.items()):
                is_old = entry.since_s is not None and (now_s - entry.since_s) * 1000 >= idle_ms
                if not is_old or self._is_renewing or freed >= max_batch:
                    continue
                if entry.runs > self.max_retry:
                    self._dead_letter(task_id, "max_deliveries", "", "its workers stopped renewing its lease")
                else:
                    entry.since_s, entry.due_s = None, now_s
                    freed += 1
        self._notify()
        return freed

    async def list_tasks(self, limit: int = 10, offset: int = 0) -> list[Task]:
        """Return open tasks in the order in which they were added."""
        with self._lock:
            tasks = [entry.task for entry in self._open.values()]
        return tasks[offset : offset + limit]

    async def list_pending(self, limit: int = 100) -> list[PendingTask]:
        """Return tasks that were delivered and are not settled."""
        with self._lock:
            now_s = self._now()
            found = []
            for entry in self._open.values():
                task = msgspec.structs.replace(entry.task, attempts=entry.runs)
                if entry.since_s is not None:
                    found.append(PendingTask(task, self.consumer, int((now_s - entry.since_s) * 1000)))
                elif entry.runs and entry.due_s is not None:
                    found.append(PendingTask(task, self.consumer, 0, max(0, int((entry.due_s - now_s) * 1000))))
        return found[:limit]

    async def pending_count(self) -> int:
        """Return how many tasks are open."""
        return len(self._open)

    async def close(self) -> None:
        """Do nothing: the tasks are lost with the object."""
