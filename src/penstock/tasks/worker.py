"""Worker and InlineWorker: take tasks from a queue, run their handlers, and store the results."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from penstock.config import usual_heartbeat_ms
from penstock.counters import WorkerTally
from penstock.delivery.callables import RunningCall, hung
from penstock.delivery.drain import CLEANUP_TIMEOUT_S, graceful_end
from penstock.delivery.reader import PrefetchWindow
from penstock.encode_errors import type_name
from penstock.errors import (
    EXITS,
    NOT_OF_ONE_MESSAGE,
    ConfigurationError,
    ConfigurationTypeError,
    PenstockError,
    TaskTimeout,
    TransientError,
    WorkerStopped,
)
from penstock.events import Emitter, EventName, EventSink
from penstock.logs import OutageLog
from penstock.number_checks import check_number
from penstock.results.backend import ResultBackend
from penstock.runtime.aio import IS_ASYNC, Cancelled, Flag, TaskGroup, Threads, next_tick, shielded
from penstock.task import Result, Task
from penstock.tasks.committer import ResultCommitter
from penstock.tasks.handlers import Handlers
from penstock.tasks.queue import TaskQueue
from penstock.tasks.runner import Failed, TaskInbox, TaskRunner
from penstock.type_checks import check_type

logger = logging.getLogger("penstock.tasks")
_TASKS_A_TURN = 100  # that one activity runs before all others have a turn
_WATCH_S, _IDLE_WATCH_S = 0.05, 1.0
_ORPHANS = 1_000
_OUTAGE_PAUSE_S = 0.5
_MAX_AHEAD = 1_000
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker did until it ended."""

    reason: str  # stopped, signal, idle, uptime, burst, exit
    ok: int
    failed: int  # runs that failed, whatever became of the task
    dead: int  # tasks that were given up, and entries that no handler got
    skipped: int
    refused: int  # results that came too late
    unsaved: int


class Worker:
    """Runs tasks of a queue with handlers, up to `concurrency` at a time.

    Guarantees: a task is acknowledged after its result was saved, in the same step in which the queue stores that.
    Leases are renewed from a thread while handlers run. On stop(), SIGTERM and SIGINT nothing new begins, what runs may
    end within `shutdown_grace_ms`, and everything else is handed back without counting an attempt. A handler that calls
    sys.exit() has failed like any other; then the worker stops, and run() raises SystemExit.
    """

    def __init__(
        self,
        queue: TaskQueue,
        handlers: Handlers,
        *,
        results: ResultBackend | None = None,
        concurrency: int = 16,
        provides: Collection[str] = (),
        burst: bool = False,
        idle_exit_ms: int | None = None,
        max_uptime_ms: int | None = None,
        shutdown_grace_ms: int = 30_000,
        idle_ms: int | None = None,
        prefetch: int | None = None,
        save_timeout_ms: int = 30_000,
        save_errors: bool = False,
        handle_signals: bool = True,
        on_event: EventSink | None = None,
    ) -> None:
        check_number("concurrency", concurrency)
        _check_parts(queue, handlers)
        if not len(handlers):
            raise ConfigurationError("no handlers: register one with @handlers.task('kind')")
        self.queue, self.handlers, self.concurrency = queue, handlers, concurrency
        self._queue: Any = queue  # for the optional methods: wake, hand_back, admit, begin
        self._pop_options = {"begin": False} if hasattr(queue, "begin") else {}
        self.provides = frozenset(provides)
        self.kinds = handlers.for_worker(self.provides)
        self.tally = WorkerTally()
        self._burst, self._idle_exit_ms, self._max_uptime_ms = burst, idle_exit_ms, max_uptime_ms
        self._grace_s, self._handle_signals = shutdown_grace_ms / 1000, handle_signals
        self._idle_ms = idle_ms or int(getattr(queue, "idle_ms", 60_000))
        self._prefetch = PrefetchWindow(min(concurrency, _MAX_AHEAD), prefetch or _MAX_AHEAD)
        self._threads = Threads(concurrency)
        self._runner = TaskRunner(handlers, self.tally, self._threads, queue)
        self._limits = {handler.kind: handler.limits for handler in handlers if handler.limits}
        if self._limits and not hasattr(queue, "admit"):
            raise ConfigurationError(
                f"{type(queue).__name__} does not support the limits declared by the handlers "
                f"{', '.join(sorted(self._limits))}"
            )
        name = str(getattr(queue, "name", ""))
        self._emit = Emitter(on_event, name, name)
        self._outage = OutageLog(logger, f"worker of {name}")
        settled = self._give_back_permit if self._limits else None
        self._committer = ResultCommitter(
            queue, results, self.tally, save_timeout_ms / 1000, save_errors, self._emit, settled
        )
        self._inbox = TaskInbox()
        self._running: list[RunningCall] = []
        self._stopping, self._has_tasks = Flag(), Flag()
        self._undeliverable_before = self._undeliverable()
        self._reason = ""
        self._busy_s = 0.0  # when something was last under way
        self._exit: BaseException | None = None  # a handler ended the process

    # --- life ---------------------------------------------------------------------------------------

    def stop(self, reason: str = "stopped") -> None:
        """Make run() return; may be called from any thread and from signal handlers."""
        self._reason = self._reason or reason
        self._stopping.set_from_outside()

    async def run(self) -> WorkerReport:
        """Run until stopped, idle or out of work, as configured; return what was done."""
        self._busy_s = time.monotonic()
        activities, workers = TaskGroup(partial(self.stop, "failed")), TaskGroup(partial(self.stop, "failed"))
        on_signal = partial(self.stop, "signal") if self._handle_signals else None
        try:
            hangs = partial(hung, self._running, self._idle_ms / 1000)
            with self.queue.renewing(usual_heartbeat_ms(self._idle_ms), hangs):
                shut_down = partial(self._shut_down, activities, workers)
                async with graceful_end(shut_down, self._grace_s, on_signal):
                    for _ in range(self.concurrency):
                        workers.start(self._work)
                    for role in (self._fetch, self._settle, self._watch, self._recover, self._schedule):
                        activities.start(role)
                    await self._stopping.wait()
        finally:
            await workers.cancel()
            await activities.cancel()
            self._threads.close()
        if self._exit is not None:
            raise self._exit
        for team in (workers, activities):
            team.raise_failure()
        self._emit(EventName.STOPPED, reason=self._reason)
        return self.report()

    async def _shut_down(self, activities: TaskGroup, workers: TaskGroup, grace_s: float) -> None:
        ends_s = time.monotonic() + grace_s + 2 * CLEANUP_TIMEOUT_S
        for flag in (self._stopping, self._has_tasks, self._committer.dirty):
            flag.set()
        if hasattr(self._queue, "wake"):
            await self._queue.wake()
        await self._hand_back(self._inbox.close())
        if not self._reason:
            await workers.cancel()  # run() was cancelled, and its handlers with it
        elif not await workers.join(grace_s):
            logger.warning("%d handler(s) still running after the grace period of %.0f s", self.tally.running, grace_s)
            for running in self._running:
                running.interrupt(WorkerStopped("the worker was stopped before the handler finished"))
            await workers.join(CLEANUP_TIMEOUT_S)
        try:
            await shielded(ends_s - time.monotonic(), self._committer.end)
        except PenstockError as error:
            logger.warning(
                "%d result(s) could not be saved; their tasks run again when their leases expire: %s",
                len(self._committer),
                error,
            )
        if not await activities.join(CLEANUP_TIMEOUT_S):
            await activities.cancel()
        await self._hand_back(self._inbox.close())  # what came while it was closed
        if hasattr(self._queue, "hand_back"):
            try:
                await self._queue.hand_back()  # what a pop that was cut off has left behind
            except PenstockError as error:
                logger.warning(
                    "tasks that no handler has received could not be returned; another worker gets "
                    "them when their leases expire: %s",
                    error,
                )

    async def _hand_back(self, tasks: list[Task]) -> None:
        if not tasks:
            return
        try:
            if hasattr(self._queue, "hand_back"):
                count = await self._queue.hand_back(tasks)
            else:
                count = sum([await self.queue.nack(task.id, counts=False) for task in tasks])
            self._emit(EventName.HANDED_BACK, count=count)
        except BaseException as error:  # also a cancellation: the final hand_back() returns them
            for task in tasks:
                self._committer.abandon(task, has_run=False)
            if not isinstance(error, PenstockError):
                raise
            logger.warning("%d task(s) that have not begun could not be returned yet: %s", len(tasks), error)

    def report(self) -> WorkerReport:
        """Return what was done so far."""
        total = self.tally.total
        failed = total("retry") + total("dead") + total("error")
        dead = total("dead") + self._undeliverable() - self._undeliverable_before
        return WorkerReport(self._reason, total("ok"), failed, dead, total("skip"), total("refused"), total("unsaved"))

    def _undeliverable(self) -> int:
        return int(getattr(self._queue, "undeliverable", 0))

    # --- roles --------------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        """Keep the inbox just full enough that no handler waits, and leave the rest to other workers.

        Tasks whose results are not stored yet count as well: they run again if this worker dies.
        """
        while not self._stopping.is_set():
            unsettled = len(self._inbox) + len(self._committer)
            if unsettled > self._prefetch.target // 2 or self._committer.is_backend_away:
                self._inbox.has_room.clear()
                await self._inbox.has_room.wait(_WATCH_S)
                continue
            self._prefetch.adjust()
            room = max(1, self._prefetch.target - unsettled)
            found = await self._persist(self._pop, room)
            if found:
                await self._accept(found)
                await next_tick()
            elif self._burst and found is not None and self._is_idle():
                self.stop("burst")

    async def _accept(self, found: list[Task]) -> None:
        try:
            if self._stopping.is_set():
                await self._hand_back(found)
                return
            self._busy_s = time.monotonic()
            self._prefetch.refilled()
            self._inbox.put(await self._admitted(found) if self._limits else found)
            self._has_tasks.set()
        except Cancelled:
            for task in found:  # no handler gets them: the final hand_back() returns them
                self._committer.abandon(task, has_run=False)
            raise

    async def _admitted(self, tasks: list[Task]) -> list[Task]:
        admitted = []
        for task in tasks:
            limits = self._limits.get(task.kind)
            answer = limits is None or await self._persist(self._queue.admit, task, limits)
            if answer:
                admitted.append(task)
            elif answer is None:  # no reply from Redis
                self._committer.abandon(task, has_run=False)
        return admitted

    async def _give_back_permit(self, task: Task) -> None:
        limits = self._limits.get(task.kind)
        if limits is not None:
            await self._queue.give_back_permit(task, limits)

    async def _pop(self, room: int) -> list[Task]:
        wait_s = 0.02 if self._burst else 1.0
        found: list[Task] = await self._queue.pop_many(
            min(room, _MAX_AHEAD), block=True, timeout=wait_s, provides=self.provides, kinds=self.kinds,
            **self._pop_options,
        )  # fmt: skip
        self._outage.succeeded()
        return found

    def _is_idle(self) -> bool:
        return not len(self._inbox) and not self.tally.running and not len(self._committer)

    async def _work(self) -> None:
        running = RunningCall()
        self._running.append(running)
        done = 0
        while (task := await self._inbox.take()) is not None:
            if self._reason:  # stop() was called, and the inbox was not closed yet: nothing new begins
                await self._hand_back([task, *self._inbox.close()])
                continue
            self.tally.running += 1
            try:
                if not await self._begin(task):
                    continue
                outcome = await self._runner.run(task, running)
                await self._persist_settling(task, outcome)
                if isinstance(outcome, Failed) and isinstance(outcome.cause, EXITS):
                    self._exit = outcome.cause
                    self.stop("exit")
            finally:
                self.tally.running -= 1
            done += 1
            if done % _TASKS_A_TURN == 0:
                await next_tick()

    async def _begin(self, task: Task) -> bool:
        if not self._pop_options:
            return True
        answer = None
        try:
            answer = await self._persist(self._queue.begin, task)
        finally:
            if answer is None:  # no reply from Redis, or the worker was cancelled
                self._committer.abandon(task, has_run=False)
        return bool(answer)

    async def _persist_settling(self, task: Task, outcome: Any) -> None:
        try:
            await self._committer.settle(task, outcome)
        except TransientError as error:
            logger.warning(
                "task %s could not be settled; another worker gets it when its lease expires: %s", task.id, error
            )
            self._committer.abandon(task, has_run=True)
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception as error:
            await self._committer.put_aside(task, error)

    async def _settle(self) -> None:
        while not self._stopping.is_set():
            await self._persist(self._committer.run_once)
            self._inbox.has_room.set()

    async def _watch(self) -> None:
        """End runs that take too long, and the worker when its time has come."""
        started_s = time.monotonic()
        while True:
            self._has_tasks.clear()  # before the looks: what comes after them ends the wait
            if self._stopping.is_set():
                return
            now, is_idle = time.monotonic(), self._is_idle()
            for running in list(self._running):
                for task in running.messages if running.is_overdue(now) else ():
                    timeout_s = task.timeout_s or self.handlers[task.kind].timeout_s
                    text = f"handler for {task.kind} exceeded timeout_s={timeout_s} on task {task.id}"
                    running.interrupt(TaskTimeout(text))
            if not is_idle:
                self._busy_s = now
            wait_s = _IDLE_WATCH_S
            for reason, since_s, most_ms in (
                ("uptime", started_s, self._max_uptime_ms), ("idle", self._busy_s, self._idle_exit_ms),
            ):  # fmt: skip
                if most_ms is not None:
                    left_s = since_s + most_ms / 1000 - now
                    wait_s = min(wait_s, max(0.0, left_s))
                    if left_s <= 0:
                        self.stop(reason)
            await (self._has_tasks.wait(wait_s) if is_idle else self._stopping.wait(_WATCH_S))

    async def _recover(self) -> None:
        """Free the tasks of dead workers, ours or others'."""
        while True:
            while await self._persist(self.queue.requeue_orphans, self._idle_ms, _ORPHANS) == _ORPHANS:
                pass
            if await self._stopping.wait(max(0.05, self._idle_ms / 4000)):
                return

    async def _schedule(self) -> None:
        """Add the next task of every schedule ahead of its time: it comes even if no worker is there then."""
        while True:
            now, waits = datetime.now(UTC), [_LONGEST_WAIT_S]
            for schedule in self.handlers.schedules.values():
                moment = schedule.rule.after(now)
                await self._persist(partial(self.queue.enqueue, schedule.task_at(moment), at=moment))
                waits.append((moment - now).total_seconds() + 0.001)
            if await self._stopping.wait(max(0.001, min(waits))):
                return

    async def _persist(self, step: Callable[..., Awaitable[Any]], *args: object) -> Any:
        """Do a step; when it fails for now or for one task, wait a moment and return nothing.

        What the server refuses to everybody, such as rights, ends the worker.
        """
        try:
            return await step(*args)
        except TransientError as error:
            self._outage.failed(error)
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception:
            logger.exception("unexpected error in a worker of %r; it continues", self.queue)
        await self._stopping.wait(_OUTAGE_PAUSE_S)
        return None


class InlineWorker:
    """A worker that runs tasks only when called, without background activities."""

    def __init__(
        self,
        queue: TaskQueue,
        handlers: Handlers,
        *,
        results: ResultBackend | None = None,
        provides: Collection[str] = (),
    ) -> None:
        _check_parts(queue, handlers)
        self.queue, self.provides = queue, frozenset(provides)
        self.kinds = handlers.for_worker(self.provides)
        self.tally = WorkerTally()
        self._runner = TaskRunner(handlers, self.tally, Threads(1), queue)
        self._committer = ResultCommitter(queue, results, self.tally, 30.0, save_errors=False, emit=Emitter(None, ""))

    async def run_once(self) -> Result | None:
        """Run the next task; return its result, or None if there was no task, or it failed and is retried.

        A task that is given up has a result of status `error`.
        """
        return (await self._run_next())[1]

    async def _run_next(self) -> tuple[bool, Result | None]:
        found = await self.queue.pop_many(1, block=False, provides=self.provides, kinds=self.kinds)
        if not found:
            return False, None
        outcome = await self._runner.run(found[0], RunningCall())
        await self._committer.settle(found[0], outcome)
        await self._committer.end()
        if isinstance(outcome, Failed):
            if isinstance(outcome.cause, EXITS):
                raise outcome.cause
            return True, await self.queue.wait_for_result(found[0].id, 0)
        return True, outcome

    async def run_until_empty(self) -> list[Result]:
        """Run tasks until none is due; return the results."""
        results: list[Result] = []
        while True:
            was_found, result = await self._run_next()
            if not was_found:
                return results
            if result is not None:
                results.append(result)


def _check_parts(queue: object, handlers: object) -> None:
    if not hasattr(queue, "pop_many"):
        raise ConfigurationTypeError(
            f"queue must be a task queue, not {type_name(queue)}: RedisTaskQueue('redis://localhost:6379')"
        )
    if type(queue).__module__.startswith("penstock.") and inspect.iscoroutinefunction(queue.pop_many) != IS_ASYNC:
        here, there = ("async", "blocking") if IS_ASYNC else ("blocking", "async")
        raise ConfigurationTypeError(
            f"queue is {there}, but this worker is {here}: import both from the package with `.sync`, or both without"
        )
    check_type("handlers", handlers, Handlers, "register each function with @handlers.task('kind')")
