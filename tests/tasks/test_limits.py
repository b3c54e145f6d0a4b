"""Limits hold over all workers, burn no attempt and hold nobody up who is not meant."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import redis

from penstock.errors import ConfigurationError
from penstock.task import Task
from penstock.tasks import CronRule, Handlers, Limits, Rate, RedisTaskQueue, Schedule, StubQueue, TaskQueue
from penstock.tasks.blocking_reads import BlockingReads
from penstock.tasks.lanes import Lane
from tests.helpers.aio import DEADLINE_S, Event, eventually, pause, wait_for
from tests.tasks.stage import quick, running

pytestmark = pytest.mark.every_server


@pytest.fixture(params=["stub", "redis"])
async def queues(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[list[TaskQueue]]:
    """Two objects for one queue, as two workers have them."""
    if request.param == "stub":
        stub = StubQueue()
        yield [stub, stub]
    else:
        async with RedisTaskQueue(redis_url, "jobs") as one, RedisTaskQueue(redis_url, "jobs") as two:
            yield [one, two]


class Crowd:
    """A handler that knows how many of it run."""

    def __init__(self, seconds: float, together: int = 1) -> None:
        self._seconds, self._together = seconds, together
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.attempts: Counter[int] = Counter()
        self.begun: list[float] = []

    async def __call__(self, task: Task) -> None:
        self.begun.append(time.monotonic())
        self.attempts[task.attempts] += 1
        for name in ("all", task.key or ""):
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
        await eventually(lambda: self.most["all"] >= self._together)
        await pause(self._seconds)
        for name in ("all", task.key or ""):
            self.now[name] -= 1


async def work_off(queues: list[TaskQueue], handlers: Handlers, tasks: list[Task]) -> None:
    await queues[0].enqueue_many(tasks)
    async with running(*(quick(queue, handlers) for queue in queues)):
        for task in tasks:
            assert await queues[0].wait_for_result(task.id, DEADLINE_S) is not None


async def test_no_more_tasks_of_a_kind_run_at_once_than_it_allows(queues: list[TaskQueue]) -> None:
    handlers, crowd = Handlers(), Crowd(0.02, together=3)
    handlers.task("few", max_concurrency=3)(crowd)
    await work_off(queues, handlers, [Task(kind="few") for _ in range(40)])
    assert crowd.most["all"] == 3
    assert crowd.attempts == {1: 40}


async def test_no_more_tasks_of_a_key_run_at_once_and_other_keys_go_on(queues: list[TaskQueue]) -> None:
    handlers, crowd = Handlers(), Crowd(0.02, together=2)
    handlers.task("orders", max_concurrency_per_key=1)(crowd)
    tasks = [Task(kind="orders", key=f"customer {n % 4}") for n in range(24)]
    await work_off(queues, handlers, tasks)
    assert {crowd.most[f"customer {n}"] for n in range(4)} == {1}
    assert crowd.most["all"] > 1
    assert crowd.attempts == {1: 24}


async def test_a_kind_without_limits_does_not_wait_for_one_that_has_some(queues: list[TaskQueue]) -> None:
    handlers, fast, go_on = Handlers(), Crowd(0), Event()
    begun: list[str] = []

    @handlers.task("slow", max_concurrency=1)
    async def slow(task: Task) -> None:
        begun.append(task.id)
        await wait_for(go_on)

    handlers.task("fast")(fast)
    tasks = [*(Task(kind="slow") for _ in range(10)), *(Task(kind="fast") for _ in range(50))]
    await queues[0].enqueue_many(tasks)
    async with running(*(quick(queue, handlers) for queue in queues)):
        await eventually(lambda: fast.attempts[1] == 50)
        assert len(begun) <= 1
        go_on.set()


async def test_no_more_tasks_begin_in_a_time_than_the_rate_allows(queues: list[TaskQueue]) -> None:
    handlers, crowd = Handlers(), Crowd(0)
    handlers.task("calls", rate=Rate(5, 0.5))(crowd)
    started = time.monotonic()
    await work_off(queues, handlers, [Task(kind="calls") for _ in range(15)])
    begun = sorted(crowd.begun)
    # Five at once, then one every tenth of a second: none begins earlier, however late the others were seen to.
    assert all(begun[n] - started >= (n - 4) * 0.1 - 0.05 for n in range(5, 15))
    assert crowd.attempts == {1: 15}


async def test_a_rate_per_key_holds_for_each(queues: list[TaskQueue]) -> None:
    handlers, crowd = Handlers(), Crowd(0)
    handlers.task("calls", rate_per_key="1/0.3s")(crowd)
    handlers.task("rare", rate_per_key="1/600s")(Crowd(0))
    await work_off(queues, handlers, [Task(kind="rare", key=f"k{n}") for n in range(5)])  # none waits for another key
    started = time.monotonic()
    await work_off(queues, handlers, [Task(kind="calls", key=f"k{n % 5}") for n in range(10)])
    assert time.monotonic() - started >= 0.25
    assert len(crowd.begun) == 10


async def test_permits_of_a_worker_that_died_are_free_again(redis_url: str, raw: redis.Redis) -> None:
    tasks = [Task(kind="few") for _ in range(3)]
    limits = Limits(max_concurrency=1)
    async with RedisTaskQueue(redis_url, "jobs", idle_ms=2_000) as living, RedisTaskQueue(redis_url, "jobs") as patient:
        async with RedisTaskQueue(redis_url, "jobs") as dead:
            await dead.enqueue_many(tasks)
            [first] = await dead.pop_many(1)
            assert await dead.admit(first, limits)
        [second] = await patient.pop_many(1)
        assert not await patient.admit(second, limits)
        handlers, crowd = Handlers(), Crowd(0)
        handlers.task("few", max_concurrency=1)(crowd)
        async with running(quick(living, handlers, idle_ms=2_000)):
            for task in tasks:
                assert await living.wait_for_result(task.id, DEADLINE_S) is not None
    assert crowd.most["all"] == 1
    assert [key for key in raw.scan_iter("*permits*")] == []  # noqa: C416


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5/s", Rate(5, 1)), ("100/m", Rate(100, 60)), ("10/30s", Rate(10, 30)), ("1 / hour", Rate(1, 3600))],
)
def test_rates_are_read(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["5", "s", "0/s", "-1/s", "5/0s", "5/fortnight"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Rate.parse(text)


# --- schedules ------------------------------------------------------------------------------------


class _Soon(CronRule):
    """A rule that comes true every 300 ms, which no cron can say."""

    def after(self, moment: datetime) -> datetime:
        step = timedelta(milliseconds=300)
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        return begin + ((moment - begin) // step + 1) * step


async def test_a_schedule_adds_each_task_once_however_many_workers_there_are(queues: list[TaskQueue]) -> None:
    handlers, seen = Handlers(), []

    @handlers.task("report")
    async def report(task: Task) -> None:
        seen.append((task.id, task.payload))

    every = CronRule.parse("* * * * *")
    soon = _Soon(**{name: getattr(every, name) for name in every.__slots__})

    class _Precise(Schedule):
        def task_at(self, moment: datetime) -> Task:
            return Task(kind="report", id=f"cron.{moment.timestamp():.3f}", payload=self.payload)

    handlers.schedules["report"] = _Precise("report", soon, "report", {"n": 1})
    async with running(*(quick(queue, handlers) for queue in queues)):
        await eventually(lambda: len(seen) >= 4)
    assert len({task_id for task_id, _ in seen}) == len(seen)
    assert {payload["n"] for _, payload in seen} == {1}


async def test_the_next_task_of_a_schedule_waits_in_the_queue(queues: list[TaskQueue]) -> None:
    handlers = Handlers()
    handlers.task("report")(lambda _: None)
    handlers.schedule("@yearly", "report", payload={"n": 1})
    async with running(quick(queues[0], handlers), quick(queues[1], handlers)):
        await eventually(queues[0].pending_count)
    [task] = await queues[0].list_tasks()
    assert task.id == f"cron.report.{datetime.now(UTC).year + 1}0101T000000Z"
    with pytest.raises(ConfigurationError, match="two schedules"):
        handlers.schedule("@daily", "report")


async def test_a_permit_that_is_given_back_wakes_the_lane_of_the_next_task_alone(
    redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tasks.lane_store.REFRESH_EVERY_S", -1.0)  # every pop looks which lanes there are
    limits, woken = Limits(max_concurrency=1), list[str]()
    async with RedisTaskQueue(redis_url, "jobs") as queue:
        for n in range(20):  # a lane each: anybody may write tasks of kinds that nobody knows
            await queue.enqueue(Task(kind=f"unknown-{n}"))
        await queue.pop_many(20, kinds={"few"}, block=False)
        assert len(list(raw.scan_iter("jobs.tasks*"))) > 20
        await queue.enqueue_many([Task(kind="few"), Task(kind="few")])
        first, second = await queue.pop_many(2, kinds={"few"})
        assert [await queue.admit(task, limits) for task in (first, second)] == [True, False]
        due_soon = BlockingReads.due_soon

        async def noted(self: BlockingReads, lane: Lane, delay_s: float) -> None:
            woken.append(lane.name)
            await due_soon(self, lane, delay_s)

        monkeypatch.setattr(BlockingReads, "due_soon", noted)
        await queue.give_back_permit(first, limits)
        assert woken == ["normal"]
        assert [task.id for task in await queue.pop_many(1, kinds={"few"})] == [second.id]
