"""A worker does tasks, stores results, tries again what failed, and ends when it is told to."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis

from penstock.errors import (
    BackendUnavailable,
    ConfigurationError,
    ConnectionLost,
    FatalError,
    RetryLater,
    Skip,
    Snooze,
    TaskTimeout,
)
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.runtime.aio import IS_ASYNC, Cancelled, Flag
from penstock.task import Result, Status, Task
from penstock.tasks import Handlers, RedisTaskQueue, Retry, StubQueue, TaskQueue, Worker
from penstock.tasks.task_reader import TaskReader
from tests.helpers import threads
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import DEADLINE_S, Event, eventually, join, pause, start, wait_for
from tests.tasks.stage import MemoryBackend, quick, running

AT_ONCE = Retry(initial_delay_ms=0)


@pytest.fixture(params=["stub", "redis"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[TaskQueue]:
    if request.param == "stub":
        yield StubQueue()
    else:
        async with RedisTaskQueue(request.getfixturevalue("redis_url")) as queue:
            yield queue


pytestmark = [pytest.mark.usefixtures("default_server")]


async def result_of(queue: TaskQueue, task: Task) -> Result:
    result = await queue.wait_for_result(task.id, DEADLINE_S)
    assert result is not None
    return result


async def test_a_task_is_done_and_its_result_is_saved_and_told(queue: TaskQueue, redis_url: str) -> None:
    handlers, backend = Handlers(), MemoryBackend()

    @handlers.task("add")
    async def add(task: Task) -> int:
        return int(task.payload["a"]) + int(task.payload["b"])

    @handlers.task("plain")
    def plain(task: Task) -> str:
        return threading.current_thread().name

    tasks = [Task(kind="add", payload={"a": 1, "b": 2}), Task(kind="plain")]
    await queue.enqueue_many(tasks)
    worker = quick(queue, handlers, results=backend)
    async with running(worker):
        added, told = await result_of(queue, tasks[0]), await result_of(queue, tasks[1])
    assert (added.data, added.status, added.attempts) == (3, Status.OK, 1)
    assert added.started_at is not None
    assert added.started_at <= added.finished_at
    assert told.data != threading.main_thread().name
    assert backend.saved == {tasks[0].id: added, tasks[1].id: told}
    assert worker.report().ok == 2


async def test_an_idle_worker_wakes_up_a_few_times_a_second(
    queue: TaskQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers, waits, wait = Handlers(), list[float | None](), Flag.wait

    @handlers.task("any")
    async def never(task: Task) -> None: ...

    def counted(flag: Flag, timeout_s: float | None = None) -> Any:
        waits.append(timeout_s)
        return wait(flag, timeout_s)

    monkeypatch.setattr(Flag, "wait", counted)
    async with running(quick(queue, handlers)):
        await pause(1.0)  # nothing may happen, and nothing says when it would
        assert len(waits) < 15, waits


async def test_many_tasks_are_done_each_once(queue: TaskQueue, redis_url: str) -> None:
    handlers, seen = Handlers(), []

    @handlers.task("count")
    async def count(task: Task) -> None:
        seen.append(task.payload["n"])

    await queue.enqueue_many([Task(kind="count", payload={"n": n}) for n in range(3_000)])
    report = await quick(queue, handlers, burst=True).run()
    assert sorted(seen) == list(range(3_000))
    assert (report.ok, report.reason) == (3_000, "burst")
    assert await queue.pending_count() == 0


async def test_a_failed_task_is_tried_again_until_it_succeeds(queue: TaskQueue, redis_url: str) -> None:
    handlers, attempts = Handlers(), []

    @handlers.task("flaky", retry=AT_ONCE)
    async def flaky(task: Task) -> str:
        attempts.append(task.attempts)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "done"

    task = Task(kind="flaky")
    await queue.enqueue(task)
    async with running(quick(queue, handlers)):
        result = await result_of(queue, task)
    assert attempts == [1, 2, 3]
    assert (result.data, result.attempts) == ("done", 3)


@pytest.mark.parametrize(
    ("retry", "error", "runs"),
    [
        (AT_ONCE, ValueError("bad"), 4),  # what the queue allows
        (Retry(max_attempts=2, initial_delay_ms=0), ValueError("bad"), 2),
        (Retry(max_attempts=7, initial_delay_ms=0), ValueError("bad"), 7),
        (Retry(max_attempts=1), ValueError("bad"), 1),
        (Retry(never=(KeyError,), initial_delay_ms=0), KeyError("bad"), 1),
        (Retry(only=(OSError,), initial_delay_ms=0), ValueError("bad"), 1),
        (AT_ONCE, FatalError("bad"), 1),
        (AT_ONCE, RetryLater(0.001, "bad"), 4),
    ],
)
async def test_a_task_that_always_fails_is_given_up_as_its_kind_says(
    queue: TaskQueue, retry: Retry, error: Exception, runs: int, redis_url: str
) -> None:
    handlers, seen = Handlers(), []

    @handlers.task("bad", retry=retry)
    async def bad(task: Task) -> None:
        seen.append(task.attempts)
        raise error

    task = Task(kind="bad")
    await queue.enqueue(task)
    worker = quick(queue, handlers)
    async with running(worker):
        result = await result_of(queue, task)
    assert seen == list(range(1, runs + 1))
    assert result.status is Status.ERROR
    assert type(error).__name__ in str(result.error)
    assert "bad" in str(result.error)
    assert result.attempts == runs
    assert worker.report().dead == 1


class Unusual(BaseException):
    """What a handler may raise that is neither an exception nor a request to exit."""


@pytest.mark.parametrize("kind", [Cancelled, GeneratorExit, Unusual])
async def test_whatever_a_handler_raises_is_a_failed_run(
    queue: TaskQueue, redis_url: str, kind: type[BaseException]
) -> None:
    handlers, runs = Handlers(), []

    @handlers.task("odd", retry=Retry(max_attempts=2, initial_delay_ms=0))
    async def odd(task: Task) -> None:
        runs.append(task.attempts)
        raise kind("as ordered")

    @handlers.task("fine")
    async def fine(task: Task) -> str:
        return "done"

    odd_one, fine_one = Task(kind="odd"), Task(kind="fine")
    await queue.enqueue_many([odd_one, fine_one])
    async with running(quick(queue, handlers)):
        failed, done = await result_of(queue, odd_one), await result_of(queue, fine_one)
    assert runs == [1, 2]
    assert (failed.status, done.data) == (Status.ERROR, "done")
    assert f"{kind.__name__}: as ordered" in str(failed.error)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_handler_that_exits_ends_the_worker_and_its_run_counts(
    queue: TaskQueue, redis_url: str, kind: type[BaseException]
) -> None:
    handlers, runs = Handlers(), []

    @handlers.task("leave", retry=Retry(max_attempts=3, initial_delay_ms=0))
    async def leave(task: Task) -> None:
        runs.append(task.attempts)
        raise kind(66)

    task = Task(kind="leave")
    await queue.enqueue(task)
    for _ in range(3):
        with pytest.raises(kind, match="66"):
            await quick(queue, handlers).run()
    assert runs == [1, 2, 3]
    assert (await result_of(queue, task)).status is Status.ERROR
    assert await queue.pending_count() == 0


class Silence(BaseException):
    """No Exception: whoever catches only those is ended by it."""


class Mute(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise Silence

    __repr__ = __str__


UNSPEAKABLE = {"mute": Mute(), "surrogate": ValueError("\ud800"), "huge": ValueError("x" * 5_000_000)}


@pytest.mark.parametrize("name", UNSPEAKABLE)
async def test_an_error_that_cannot_be_shown_stops_no_worker(
    queue: TaskQueue, redis_url: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    handlers = Handlers()

    @handlers.task("odd", retry=Retry(max_attempts=1))
    async def odd(task: Task) -> None:
        raise UNSPEAKABLE[name]

    @handlers.task("skipped")
    async def skipped(task: Task) -> None:
        raise Skip(UNSPEAKABLE[name])

    tasks = [Task(kind="odd"), Task(kind="skipped")]
    await queue.enqueue_many(tasks)
    async with running(quick(queue, handlers)):
        failed, skip = [await result_of(queue, task) for task in tasks]
    assert (failed.status, skip.status) == (Status.ERROR, Status.SKIP)
    assert 0 < len(str(failed.error)) < 3_000
    assert len(str(skip.error)) < 3_000
    logged = [caplog.handler.format(record) for record in caplog.records if record.name.endswith(".tasks")]
    assert 0 < len("".join(logged).encode()) < 20_000


async def test_a_failure_is_logged_with_its_traceback_which_the_result_has_too(
    queue: TaskQueue, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()

    @handlers.task("ship", retry=Retry(max_attempts=2, initial_delay_ms=0))
    async def ship(task: Task) -> None:
        task.payload["address"]

    task = Task(kind="ship")
    await queue.enqueue(task)
    async with running(quick(queue, handlers)):
        result = await result_of(queue, task)
    assert result.traceback is not None
    assert 'task.payload["address"]' in result.traceback
    logged = [record for record in caplog.records if record.exc_info]
    name = queue.name  # type: ignore[attr-defined]
    told = [tuple(vars(record)[key] for key in ("levelname", "stream", "group", "id", "attempt")) for record in logged]
    assert told == [("WARNING", name, name, task.id, 1), ("ERROR", name, name, task.id, 2)]
    assert (
        logged[0].getMessage().startswith(f"handler for ship failed on task {task.id} of queue {name} in attempt 1: ")
    )


async def test_a_snooze_burns_no_attempt(queue: TaskQueue, redis_url: str) -> None:
    handlers, seen = Handlers(), []

    @handlers.task("sleepy")
    async def sleepy(task: Task) -> None:
        seen.append(task.attempts)
        if len(seen) < 8:
            raise Snooze(0.001)

    task = Task(kind="sleepy")
    await queue.enqueue(task)
    async with running(quick(queue, handlers)):
        assert (await result_of(queue, task)).status is Status.OK
    assert seen == [1] * 8


async def test_a_handler_may_skip_a_task_or_give_the_result_itself(queue: TaskQueue, redis_url: str) -> None:
    handlers = Handlers()

    @handlers.task("skip")
    async def skip(task: Task) -> None:
        raise Skip("nothing new")

    @handlers.task("own")
    async def own(task: Task) -> Result:
        return Result(task_id="x", kind="x", data=5, status=Status.SKIP)

    tasks = [Task(kind="skip"), Task(kind="own")]
    await queue.enqueue_many(tasks)
    async with running(quick(queue, handlers)):
        skipped, given = await result_of(queue, tasks[0]), await result_of(queue, tasks[1])
    assert (skipped.status, skipped.error) == (Status.SKIP, "nothing new")
    assert (given.task_id, given.kind, given.data, given.status) == (tasks[1].id, "own", 5, Status.SKIP)


@pytest.mark.skipif(not IS_ASYNC, reason="a thread cannot be interrupted")
async def test_a_handler_that_takes_too_long_is_ended(queue: TaskQueue, redis_url: str) -> None:
    handlers = Handlers()

    @handlers.task("slow", timeout_s=0.05, retry=Retry(max_attempts=2, initial_delay_ms=0))
    async def slow(task: Task) -> None:
        await pause(DEADLINE_S)

    task, other = Task(kind="slow"), Task(kind="slow", timeout_s=0.01)
    await queue.enqueue_many([task, other])
    async with running(quick(queue, handlers)):
        for each in (task, other):
            result = await result_of(queue, each)
            assert result.attempts == 2
            assert TaskTimeout.__name__ in str(result.error)


@pytest.mark.parametrize("is_failing", [True, False])
async def test_a_task_whose_handler_hangs_is_not_renewed_for_ever_and_left_to_its_next_holder(
    redis_url: str, raw: redis.Redis, is_failing: bool
) -> None:
    handlers = Handlers()

    @handlers.task("work", timeout_s=0.01)
    async def work(task: Task) -> None:
        threads.eventually(lambda: not len(queue._in_flight))  # blocks the event loop
        [(entry_id, _)] = raw.xrange("jobs.tasks")
        raw.xclaim("jobs.tasks", "jobs", "other", 0, [entry_id], justid=True)
        if is_failing:
            raise ValueError("too late")

    async with RedisTaskQueue(redis_url, "jobs") as queue:
        await queue.enqueue(Task(kind="work"))
        worker = quick(queue, handlers, idle_ms=100)
        async with running(worker):
            await eventually(lambda: worker.tally.total("refused") == 1)
        assert raw.xpending("jobs.tasks", "jobs")["consumers"] == [{"name": b"other", "pending": 1}]


@pytest.mark.skipif(not IS_ASYNC, reason="a handler in a thread keeps its worker")
async def test_plain_handlers_that_hang_hold_up_no_other_task(queue: TaskQueue, redis_url: str) -> None:
    handlers, may_end = Handlers(), threading.Event()

    @handlers.task("slow", timeout_s=0.05, retry=Retry(max_attempts=2, initial_delay_ms=0))
    def slow(task: Task) -> None:
        may_end.wait(DEADLINE_S)

    @handlers.task("quick", timeout_s=DEADLINE_S)
    def at_once(task: Task) -> str:
        return "done"

    tasks = [Task(kind="slow"), Task(kind="slow"), Task(kind="quick")]
    await queue.enqueue_many(tasks)
    try:
        async with running(quick(queue, handlers, concurrency=1)):
            results = [await result_of(queue, task) for task in tasks]
    finally:
        may_end.set()
    assert [(result.status, result.data) for result in results] == [(Status.ERROR, None)] * 2 + [(Status.OK, "done")]


async def test_the_result_of_a_task_is_what_follows(queue: TaskQueue, redis_url: str) -> None:
    handlers, backend = Handlers(), MemoryBackend()

    @handlers.task("double")
    async def double(task: Task) -> int:
        return 2 * int(task.payload.get("result", task.payload.get("n", 0)))

    last = Task(kind="double")
    middle = Task(kind="double", then=(last,))
    await queue.enqueue(Task(kind="double", payload={"n": 5}, then=(middle,)))
    async with running(quick(queue, handlers, results=backend)):
        assert (await result_of(queue, last)).data == 40
    assert len(backend.saved) == 3


async def test_a_task_that_a_worker_cannot_do_is_left_for_others(queue: TaskQueue, redis_url: str) -> None:
    small, large = Handlers(), Handlers()

    @small.task("render")
    async def render(task: Task) -> str:
        return "small"

    @small.task("big", requires={"memory"})
    async def never(task: Task) -> None:
        raise AssertionError("this worker has no memory")

    @large.task("render")
    async def render_large(task: Task) -> str:
        return "large"

    @large.task("big", requires={"memory"})
    @large.task("print")
    async def rest(task: Task) -> list[object]:
        return [task.kind, task.attempts]

    tasks = [
        Task(kind="print"),
        Task(kind="render", requires=frozenset({"gpu"})),
        Task(kind="big"),
        Task(kind="render"),
    ]
    await queue.enqueue_many(tasks)
    async with running(quick(queue, small)):
        assert (await result_of(queue, tasks[3])).data == "small"
        async with running(quick(queue, large, provides={"gpu", "memory"})):
            found = [(await result_of(queue, task)).data for task in tasks]
    assert found == [["print", 1], "large", ["big", 1], "small"]


# --- saving ---------------------------------------------------------------------------------------


async def test_a_task_whose_result_cannot_be_saved_is_not_acknowledged_and_runs_again(
    queue: TaskQueue, redis_url: str
) -> None:
    handlers, backend, runs = Handlers(), MemoryBackend(), []
    backend.failure = OSError("no space left on device")

    @handlers.task("work")
    async def work(task: Task) -> int:
        runs.append(task.attempts)
        return len(runs)

    task = Task(kind="work")
    await queue.enqueue(task)
    worker = quick(queue, handlers, results=backend)
    async with running(worker):
        await eventually(lambda: worker.tally.backend_failures >= 2)
        assert await queue.wait_for_result(task.id, 0) is None
        assert await queue.pending_count() == 1
        backend.failure = None
        result = await result_of(queue, task)
    assert set(runs) == {1}
    assert backend.saved == {task.id: result}


async def test_a_back_end_that_is_away_for_a_while_costs_no_second_run(queue: TaskQueue, redis_url: str) -> None:
    handlers, backend, runs = Handlers(), MemoryBackend(), Counter[str]()
    backend.failure = BackendUnavailable("the database is being restarted")

    @handlers.task("work")
    async def work(task: Task) -> str:
        runs[task.id] += 1
        return task.id

    tasks = [Task(kind="work") for _ in range(300)]
    await queue.enqueue_many(tasks[:100])
    worker = quick(queue, handlers, results=backend, concurrency=4, prefetch=50)
    async with running(worker):
        await eventually(lambda: worker.tally.backend_failures >= 6)  # for two seconds, by its growing pauses
        await queue.enqueue_many(tasks[100:])
        await eventually(lambda: worker.tally.backend_failures >= 7)
        assert len(runs) <= 100 + 50, "nothing is fetched that could not be saved, but by a read that was under way"
        backend.failure = None
        for task in tasks:
            assert (await result_of(queue, task)).data == task.id
    assert runs == Counter(task.id for task in tasks)
    assert worker.report().unsaved == 0
    assert len(backend.saved) == 300


async def test_a_task_that_cannot_be_settled_stops_no_other(redis_url: str, raw: redis.Redis) -> None:
    handlers = Handlers()
    raw.xadd("jobs.dead", {"junk": "1"}, id=f"{2**64 - 1}-{2**64 - 1}")  # nothing can be added behind it
    raw.xadd("jobs.tasks", {"data": "no task"})

    @handlers.task("work", retry=Retry(max_attempts=1))
    async def work(task: Task) -> None:
        if task.payload.get("fails"):
            raise ValueError("as ordered")

    bad, good = Task(kind="work", payload={"fails": True}), [Task(kind="work") for _ in range(20)]
    async with RedisTaskQueue(redis_url, "jobs") as queue:
        await queue.enqueue_many([bad, *good])
        async with running(quick(queue, handlers)):
            for task in good:
                assert (await result_of(queue, task)).status is Status.OK
            raw.delete("jobs.dead")
            assert (await result_of(queue, bad)).status is Status.ERROR
            await eventually(lambda: raw.xlen("jobs.dead") == 2)


async def test_a_worker_takes_no_more_tasks_than_it_can_finish(queue: TaskQueue, redis_url: str) -> None:
    handlers, is_asked, may_go_on, begun = Handlers(), Event(), Event(), []

    class Slow(MemoryBackend):
        async def save_many(self, results: Sequence[Result]) -> list[bool]:
            is_asked.set()
            await wait_for(may_go_on)
            return await super().save_many(results)

    @handlers.task("work")
    async def work(task: Task) -> None:
        begun.append(task.id)

    tasks = [Task(kind="work") for _ in range(200)]
    await queue.enqueue_many(tasks)
    worker = quick(queue, handlers, results=Slow(), concurrency=4, prefetch=8)
    async with running(worker):
        await wait_for(is_asked)
        await pause(0.3)  # nothing may happen, and nothing says when it would
        in_hand, _ = len(begun), may_go_on.set()
        for task in tasks:
            assert (await result_of(queue, task)).status is Status.OK
    assert in_hand <= 8 + 4, "all of them would run again if the worker died now"
    assert Counter(begun) == Counter(task.id for task in tasks)


@pytest.mark.skipif(not IS_ASYNC, reason="a thread cannot be interrupted")
async def test_a_back_end_that_hangs_holds_up_no_task_for_ever(queue: TaskQueue, redis_url: str) -> None:
    handlers, may_go_on = Handlers(), Event()

    class Hanging(MemoryBackend):
        async def save_many(self, results: Sequence[Result]) -> list[bool]:
            await wait_for(may_go_on)
            return await super().save_many(results)

    @handlers.task("work")
    async def work(task: Task) -> int:
        return task.attempts

    task, backend = Task(kind="work"), Hanging()
    await queue.enqueue(task)
    worker = quick(queue, handlers, results=backend, save_timeout_ms=50)
    async with running(worker):
        await eventually(lambda: worker.tally.backend_failures)
        assert await queue.pending_count() == 1
        may_go_on.set()
        assert (await result_of(queue, task)).data == 1
    assert list(backend.saved) == [task.id]


async def test_one_result_that_cannot_be_saved_stops_no_other(queue: TaskQueue, redis_url: str) -> None:
    handlers, backend = Handlers(), MemoryBackend()

    @handlers.task("work")
    async def work(task: Task) -> object:
        return task.payload["data"]

    tasks = [Task(kind="work", payload={"data": "unsavable" if n == 3 else n}) for n in range(10)]
    await queue.enqueue_many(tasks)
    worker = quick(queue, handlers, results=backend)
    async with running(worker):
        for n in (0, 1, 2, 4, 9):
            assert (await result_of(queue, tasks[n])).data == n
        await eventually(lambda: len(backend.saved) == 9)
    assert await queue.pending_count() == 1


async def test_a_result_that_was_saved_before_is_the_one_that_is_told(queue: TaskQueue, redis_url: str) -> None:
    handlers, backend = Handlers(), MemoryBackend()

    @handlers.task("work")
    async def work(task: Task) -> str:
        return "second"

    task = Task(kind="work")
    first = Result(task_id=task.id, kind="work", data="first")
    await backend.save(first)
    await queue.enqueue(task)
    async with running(quick(queue, handlers, results=backend)):
        assert await result_of(queue, task) == first


async def test_what_cannot_be_encoded_is_a_failure_of_the_handler(queue: TaskQueue, redis_url: str) -> None:
    handlers = Handlers()

    @handlers.task("odd", retry=Retry(max_attempts=1))
    async def odd(task: Task) -> object:
        return object()

    @handlers.task("fine")
    async def fine(task: Task) -> int:
        return 1

    tasks = [Task(kind="odd"), Task(kind="fine")]
    await queue.enqueue_many(tasks)
    async with running(quick(queue, handlers)):
        assert "EncodeError" in str((await result_of(queue, tasks[0])).error)
        assert (await result_of(queue, tasks[1])).data == 1


# --- ending ---------------------------------------------------------------------------------------


async def test_a_worker_that_stops_lets_handlers_end_and_hands_the_rest_back(queue: TaskQueue, redis_url: str) -> None:
    handlers, begun, may_end = Handlers(), Event(), Event()

    @handlers.task("work")
    async def work(task: Task) -> str:
        begun.set()
        await wait_for(may_end)
        return "done"

    tasks = [Task(kind="work") for _ in range(5)]
    await queue.enqueue_many(tasks)
    worker = quick(queue, handlers, concurrency=1)
    call = start(worker.run)
    await wait_for(begun)
    worker.stop()
    may_end.set()
    report = await join(call)
    assert (report.ok, report.reason) == (1, "stopped")
    assert (await result_of(queue, tasks[0])).data == "done"
    rest = [await queue.pop(timeout=DEADLINE_S) for _ in range(4)]
    assert {(task.id, task.attempts) for task in rest if task} == {(task.id, 1) for task in tasks[1:]}


@pytest.mark.skipif(not IS_ASYNC, reason="a thread cannot be interrupted")
async def test_a_handler_that_outlasts_the_grace_hands_its_task_back(queue: TaskQueue, redis_url: str) -> None:
    handlers, begun = Handlers(), Event()

    @handlers.task("work")
    async def work(task: Task) -> None:
        begun.set()
        await pause(DEADLINE_S)

    await queue.enqueue(Task(kind="work"))
    worker = quick(queue, handlers, shutdown_grace_ms=50)
    call = start(worker.run)
    await wait_for(begun)
    worker.stop()
    await join(call)
    again = await queue.pop(timeout=DEADLINE_S)
    assert again is not None
    assert again.attempts == 1


async def test_a_worker_without_work_leaves(queue: TaskQueue, redis_url: str) -> None:
    handlers = Handlers()
    handlers.task("work")(lambda _: None)
    await queue.enqueue(Task(kind="work"))
    started = time.monotonic()
    report = await quick(queue, handlers, idle_exit_ms=2_000).run()  # from its start: the first task may come late
    assert (report.reason, report.ok) == ("idle", 1)
    assert time.monotonic() - started >= 2.0


async def test_a_worker_leaves_when_its_time_is_up(queue: TaskQueue, redis_url: str) -> None:
    handlers = Handlers()
    handlers.task("work")(lambda _: None)
    report = await quick(queue, handlers, max_uptime_ms=200).run()
    assert report.reason == "uptime"


async def test_tasks_of_a_worker_that_vanished_are_done_by_another(
    queue: TaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    handlers = Handlers()

    @handlers.task("work")
    async def work(task: Task) -> int:
        return task.attempts

    tasks = [Task(kind="work") for _ in range(20)]
    await queue.enqueue_many(tasks)
    if isinstance(queue, StubQueue):
        assert len(await queue.pop_many(20)) == 20
        assert (
            await queue.requeue_orphans(0, 100) == 20
        )  # what somebody holds for long is no orphan while a worker runs
    else:
        assert isinstance(queue, RedisTaskQueue)
        async with RedisTaskQueue(redis_url) as vanished:
            assert len(await vanished.pop_many(20)) == 20
        Ageing(raw, queue.keys.tasks().stream, queue.group).expire()
    async with running(quick(queue, handlers, idle_ms=LEASE_MS)):
        assert [(await result_of(queue, task)).data for task in tasks] == [2] * 20


async def test_a_task_whose_lease_was_lost_before_it_began_does_not_run(redis_url: str, raw: redis.Redis) -> None:
    handlers, may_end, ran, events = Handlers(), Event(), list[int](), list[Occurrence]()

    @handlers.task("work")
    async def work(task: Task) -> None:
        ran.append(task.payload["n"])
        await wait_for(may_end)

    first, lost = tasks = [Task(kind="work", payload={"n": n}) for n in range(2)]
    async with RedisTaskQueue(redis_url, "jobs", on_event=events.append) as queue:
        await queue.enqueue_many(tasks)
        async with running(quick(queue, handlers, concurrency=1, idle_ms=1_000)):
            await eventually(lambda: ran and raw.xpending("jobs.tasks", "jobs")["pending"] == 2)
            _, (entry_id, _) = raw.xrange("jobs.tasks")
            raw.xclaim("jobs.tasks", "jobs", "thief", 0, [entry_id], justid=True)
            raw.zadd(queue.keys.tasks().retries("jobs"), {entry_id: time.time() * 1000 + 3_600_000})  # it stays there
            await eventually(lambda: [event.fields["ids"] for event in events if event.name == "lease_lost"])
            may_end.set()
            await result_of(queue, first)
            assert await queue.get_result(lost.id) is None
    assert ran == [0]


async def test_each_task_that_must_run_alone_gets_its_turn_while_others_keep_coming(
    redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[TaskReader.__module__], "_DRAIN_S", 0.5)
    handlers, ended, may_end = Handlers(), set[str](), Event()

    @handlers.task("work")
    async def work(task: Task) -> None:
        ended.add(task.id)
        if task not in lone and not may_end.is_set():
            await queue.enqueue(Task(kind="work"))

    lone = [Task(kind="work"), Task(kind="work")]
    async with RedisTaskQueue(redis_url, "jobs") as queue:
        await queue.enqueue_many(lone)
        async with RedisTaskQueue(redis_url, "jobs") as dead:
            await dead.pop_many(2)
        entry_ids = [entry_id for entry_id, _ in raw.xrange("jobs.tasks")]
        keys = queue.keys.tasks()
        await queue.enqueue_many([Task(kind="work") for _ in range(20)])
        async with running(quick(queue, handlers, concurrency=4)):
            await eventually(lambda: len(ended) > 20)
            for task, entry_id in zip(lone, entry_ids, strict=True):
                raw.hset(keys.attempts("jobs"), entry_id, queue.max_retry)
                raw.sadd(queue.keys.suspects(), entry_id)
                raw.zadd(keys.retries("jobs"), {entry_id: 0})
                await eventually(lambda task=task: task.id in ended)
                await pause(0.6)  # longer than the worker may take nothing else for the first one
            may_end.set()


def test_handlers_are_checked_when_they_are_registered() -> None:
    handlers = Handlers()
    handlers.task("work")(lambda _: None)
    with pytest.raises(ConfigurationError, match="two handlers"):
        handlers.task("work")(lambda _: None)
    with pytest.raises(ConfigurationError, match="rate"):
        handlers.task("other", rate="often")
    with pytest.raises(ConfigurationError, match="timeout_s"):
        handlers.task("other", timeout_s=-1)
    with pytest.raises(ConfigurationError, match="no handlers"):
        Worker(StubQueue(), Handlers())


@pytest.mark.parametrize(("lease_ms", "heartbeat_ms"), [(8_000, 2_000), (600_000, 15_000)])
async def test_a_worker_with_a_long_lease_renews_before_it_counts_as_dead(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, lease_ms: int, heartbeat_ms: int
) -> None:
    intervals, renewing = list[int](), queue.renewing

    def noted(heartbeat_interval_ms: int, *hung: Any) -> AbstractContextManager[None]:
        intervals.append(heartbeat_interval_ms)
        return renewing(heartbeat_interval_ms, *hung)

    monkeypatch.setattr(queue, "renewing", noted)
    handlers = Handlers()
    handlers.task("any")(print)
    async with running(quick(queue, handlers, idle_ms=lease_ms)):
        await eventually(lambda: intervals)
    assert intervals == [heartbeat_ms]


async def test_a_worker_tells_what_becomes_of_its_tasks(queue: TaskQueue, redis_url: str) -> None:
    handlers, events = Handlers(), list[Occurrence]()

    @handlers.task("flaky", retry=Retry(max_attempts=2, initial_delay_ms=0))
    async def flaky(task: Task) -> None:
        if task.payload["fails"] >= task.attempts:
            raise ValueError("not yet")

    once, always = Task(kind="flaky", payload={"fails": 1}), Task(kind="flaky", payload={"fails": 9})
    await queue.enqueue_many([once, always])
    worker = quick(queue, handlers, on_event=events.append)
    async with running(worker):
        await result_of(queue, once)
        await result_of(queue, always)
    assert {(event.stream, event.group) for event in events} == {(queue.name, queue.name)}  # type: ignore[attr-defined]
    told = {
        task.id: [str(event.name) for event in events if event.fields.get("id") == task.id] for task in (once, always)
    }
    assert told[once.id] == ["failed", "retried", "completed"]
    assert told[always.id] == ["failed", "retried", "failed", "dead_lettered"]
    assert [event.fields["attempts"] for event in events if event.name == "failed"].count(2) == 1
    assert (events[-1].name, events[-1].fields) == (EventName.STOPPED, {"reason": "stopped"})


async def test_a_worker_survives_an_on_event_that_raises(queue: TaskQueue, redis_url: str) -> None:
    handlers = Handlers()

    @handlers.task("work")
    async def work(task: Task) -> str:
        return "done"

    def fail(event: Occurrence) -> None:
        raise RuntimeError(event.name)

    task = Task(kind="work")
    await queue.enqueue(task)
    async with running(quick(queue, handlers, on_event=fail)):
        assert (await result_of(queue, task)).data == "done"


async def test_results_that_wait_for_the_back_end_wait_once_while_redis_is_away(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(MemoryBackend):
        async def save_many(self, results: Sequence[Result]) -> list[bool]:
            if "large" in [result.data for result in results]:
                raise OSError("no space left on device")
            return await super().save_many(results)

    async def away(results: Sequence[Result]) -> list[bool]:
        raise ConnectionLost("away")

    handlers = Handlers()
    handlers.task("work")(lambda _: None)
    worker = quick(queue, handlers, results=Full())
    committer, finish_many = worker._committer, queue.finish_many
    for data in ("small", "large"):
        await queue.enqueue(Task(kind="work"))
        task = await queue.pop()
        assert task is not None
        await committer.settle(task, Result(task_id=task.id, kind="work", data=data))
    monkeypatch.setattr(queue, "finish_many", away)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await committer.flush()
        assert (len(committer._done), len(committer._kept)) == (1, 1)
    monkeypatch.setattr(queue, "finish_many", finish_many)
    await committer.flush()
    assert (len(committer._done), len(committer._kept)) == (0, 1)
    assert worker.tally.total("refused") == 0
