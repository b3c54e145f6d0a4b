"""Task queues are looked into by state, and tasks that nobody works on are cancelled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

import penstock.ops.schedules as schedules_module
import penstock.ops.tasks as tasks_module
from penstock import Protection, StreamClient
from penstock.errors import ConfigurationError, DecodeError, NotFound
from penstock.ops import Inspector, TaskInfo, TaskState
from penstock.tasks import Handlers, RedisTaskQueue, Result, Task, Worker
from tests.helpers.aio import eventually, join, start
from tests.helpers.round_trips import count_round_trips

pytestmark = pytest.mark.usefixtures("default_server")
QUEUE = "jobs"


@pytest.fixture
async def queue(client: StreamClient) -> RedisTaskQueue:
    return RedisTaskQueue(client, QUEUE)


async def ids(inspector: Inspector, state: TaskState, **options: object) -> list[str]:
    """Returns the ids of the tasks in a state, page by page."""
    found, cursor = list[str](), ""
    while True:
        page = await inspector.tasks.tasks(QUEUE, state, limit=2, cursor=cursor, **options)  # type: ignore[arg-type]
        found += [task.id for task in page.items]
        cursor = page.cursor
        if not cursor:
            return found


async def test_tasks_are_listed_by_their_state(inspector: Inspector, queue: RedisTaskQueue) -> None:
    for n in range(3):
        await queue.enqueue(Task(kind="a", id=f"running-{n}"))
    for _ in range(3):
        assert await queue.pop() is not None
    await queue.nack("running-2", delay=60)
    for n in range(5):
        await queue.enqueue(Task(kind="b", id=f"queued-{n}", priority="high" if n % 2 else "normal"))
        await queue.enqueue(Task(kind="b", id=f"scheduled-{n}"), delay=60 + n)
    await queue.push_result(Result(task_id="done", kind="a", data=7))
    assert await ids(inspector, TaskState.RUNNING) == ["running-0", "running-1"]
    assert await ids(inspector, TaskState.WAITING) == ["running-2"]
    assert sorted(await ids(inspector, TaskState.QUEUED)) == [f"queued-{n}" for n in range(5)]
    assert await ids(inspector, TaskState.SCHEDULED) == [f"scheduled-{n}" for n in range(5)]
    assert await ids(inspector, TaskState.DONE) == ["done"]
    assert await ids(inspector, TaskState.QUEUED, kind="a") == []
    info = await inspector.tasks.info(QUEUE)
    assert (info.queued, info.running, info.waiting, info.scheduled, info.open) == (5, 2, 1, 5, 13)
    assert info.open_by_kind == {"a": 3, "b": 10}
    assert await inspector.tasks.names() == [QUEUE]
    with pytest.raises(ConfigurationError, match="state='unknown'"):
        await inspector.tasks.tasks(QUEUE, TaskState.UNKNOWN)


async def test_the_numbers_of_many_queues_take_few_round_trips(
    client: StreamClient, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        queue = RedisTaskQueue(client, f"jobs-{n:02}")
        await queue.enqueue_many(
            [Task(kind="a", requires=frozenset({"gpu"} if n == 3 else ())) for _ in range(n % 5 + 1)]
        )
        if n % 2:  # the others have no group yet
            task = await queue.pop()
            assert task is not None
            await queue.nack(task.id, delay=60)
            await queue.pop(block=False)
    one_by_one = [await inspector.tasks.info(name) for name in await inspector.tasks.names()]
    trips = count_round_trips(monkeypatch, await client.connection(""))
    found = await inspector.tasks.all()
    assert len(trips) < 12, "none for each of the queues"
    assert [replace(each, longest_idle_s=0) for each in found] == [
        replace(each, longest_idle_s=0) for each in one_by_one
    ]
    assert [(each.queued, each.running, each.waiting) for each in found[:4]] == [
        (1, 0, 0),
        (0, 1, 1),
        (3, 0, 0),
        (2, 1, 1),
    ]
    assert [each.name for each in await inspector.tasks.all(["jobs-01", "gone", "jobs-00"])] == ["jobs-01", "jobs-00"]


async def test_a_page_of_tasks_is_full_where_several_lanes_have_some(
    inspector: Inspector, queue: RedisTaskQueue
) -> None:
    for n in range(6):
        await queue.enqueue(Task(kind="b", id=f"task-{n}", priority="high" if n < 2 else "normal"))
    first = await inspector.tasks.tasks(QUEUE, limit=4)
    assert [task.id for task in first.items] == ["task-0", "task-1", "task-2", "task-3"]
    rest = await inspector.tasks.tasks(QUEUE, limit=4, cursor=first.cursor)
    assert ([task.id for task in rest.items], rest.cursor) == (["task-4", "task-5"], "")


async def test_the_status_of_a_task_follows_its_life(inspector: Inspector, queue: RedisTaskQueue) -> None:
    async def state() -> str:
        return (await inspector.tasks.status(QUEUE, "one")).state.value

    await queue.enqueue(Task(kind="a", id="other"))
    assert await state() == "unknown"
    await queue.pop()
    await queue.enqueue(Task(kind="a", id="one", payload={"page": 7}))
    assert await state() == "queued"
    await queue.pop()
    running = await inspector.tasks.status(QUEUE, "one")
    assert (running.state, running.consumer, running.payload) == ("running", queue.consumer, {"page": 7})
    await queue.nack("one", delay=60)
    assert await state() == "waiting"
    await queue.ack("one")
    await queue.push_result(Result(task_id="one", kind="a", data=9))
    done = await inspector.tasks.status(QUEUE, "one")
    assert (done.state, done.status, done.result) == ("done", "ok", 9)
    result = await inspector.tasks.result(QUEUE, "one")
    assert result is not None
    assert result.data == 9


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_task_that_nobody_works_on_is_cancelled(
    inspector: Inspector, queue: RedisTaskQueue, raw: redis.Redis, delay: float
) -> None:
    await queue.enqueue(Task(kind="a", id="one", unique="once"), delay=delay)
    assert await inspector.tasks.cancel(QUEUE, "one") == "cancelled"
    assert await queue.pop(block=False) is None
    status = await inspector.tasks.status(QUEUE, "one")
    assert (status.state, status.status, status.error) == ("done", "skip", "cancelled")
    assert await inspector.tasks.cancel(QUEUE, "one") == "gone"
    info = await inspector.tasks.info(QUEUE)
    assert (info.open, info.open_by_kind["a"], raw.xlen("jobs.tasks")) == (0, 0, 0)
    assert await queue.enqueue(Task(kind="a", id="two", unique="once")) == "two"


async def test_a_task_that_waits_is_cancelled_and_one_that_runs_is_not(
    inspector: Inspector, queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue(Task(kind="a", id="one"))
    await queue.pop()
    assert await inspector.tasks.cancel(QUEUE, "one") == "running"
    await queue.nack("one", delay=60)
    assert await inspector.tasks.cancel(QUEUE, "one") == "cancelled"
    assert raw.xpending("jobs.tasks", QUEUE)["pending"] == 0


async def test_a_schedule_is_seen_by_its_next_task_and_run_at_once(inspector: Inspector, queue: RedisTaskQueue) -> None:
    handlers, seen = Handlers(), list[object]()

    @handlers.task("clean")
    async def clean(task: Task) -> None:
        seen.append(task.payload)

    handlers.schedule("0 3 * * *", "clean", name="nightly", payload={"deep": True})
    await queue.enqueue(Task(kind="clean", id="first", payload={"deep": False}))
    worker = Worker(queue, handlers)
    run = start(worker.run)
    schedules = await eventually(lambda: inspector.schedules.of(QUEUE))
    assert [(each.name, each.kind) for each in schedules] == [("nightly", "clean")]
    assert schedules[0].next_at_ms
    await inspector.schedules.run(QUEUE, "nightly")
    await eventually(lambda: {"deep": True} in seen)
    worker.stop()
    await join(run)
    with pytest.raises(NotFound, match="no schedule 'daily'"):
        await inspector.schedules.run(QUEUE, "daily")


def put_forward(raw: redis.Redis, name: str) -> str:
    """Makes the next task of a schedule due now; returns its id."""
    [task_id] = [member for member in raw.zrange("{jobs}:due", 0, -1) if member.startswith(f"cron.{name}.".encode())]
    raw.zadd("{jobs}:due", {task_id: 1})
    return str(task_id.decode())


async def test_a_paused_schedule_skips_its_times_in_every_worker_until_it_is_resumed(
    inspector: Inspector, queue: RedisTaskQueue, client: StreamClient, raw: redis.Redis
) -> None:
    handlers, planned, seen = Handlers(), Handlers(), list[str]()

    @handlers.task("clean")
    async def clean(task: Task) -> None:
        seen.append(task.id)

    planned.schedule("0 3 1 1 *", "clean", name="yearly")
    planned.schedule("0 3 2 1 *", "clean", name="other")
    # The workers do not know the schedules: they would plan a time again that comes before its time here.
    for schedule in planned.schedules.values():
        moment = schedule.rule.after(datetime.now(UTC))
        await queue.enqueue(schedule.task_at(moment), at=moment)
    workers = [Worker(queue, handlers), Worker(RedisTaskQueue(client, QUEUE), handlers)]
    runs = [start(worker.run) for worker in workers]
    assert await inspector.schedules.pause(QUEUE, "yearly")
    assert not await inspector.schedules.pause(QUEUE, "yearly")
    states = {each.name: (each.is_paused, bool(each.next_at_ms)) for each in await inspector.schedules.of(QUEUE)}
    assert states == {"yearly": (True, True), "other": (False, True)}
    skipped, ran = put_forward(raw, "yearly"), put_forward(raw, "other")
    await queue.enqueue(Task(kind="clean", id="first"))  # who takes it learns that others are due
    await eventually(lambda: ran in seen)
    await eventually(lambda: raw.zscore("{jobs}:due", skipped) is None)
    # A task of somebody who calls it like one of the schedule is his own.
    await queue.enqueue(Task(kind="clean", id="cron.yearly.mine"), delay=0.01)
    await eventually(lambda: "cron.yearly.mine" in seen)
    assert skipped not in seen
    assert (await inspector.tasks.status(QUEUE, skipped)).state is TaskState.UNKNOWN
    [left] = [each for each in await inspector.schedules.of(QUEUE) if each.name == "yearly"]
    assert (left.is_paused, left.next_at_ms) == (True, None)
    with pytest.raises(NotFound, match="no next task"):
        await inspector.schedules.run(QUEUE, "yearly")
    assert await inspector.schedules.resume(QUEUE, "yearly")
    assert "yearly" not in {each.name for each in await inspector.schedules.of(QUEUE)}
    task = planned.schedules["yearly"].task_at(datetime(2030, 1, 1, 3, tzinfo=UTC))
    await queue.enqueue(task, at=datetime(2024, 1, 1, tzinfo=UTC))
    await eventually(lambda: task.id in seen)
    await eventually(lambda: raw.hlen("{jobs}:index") == 0)
    for worker, run in zip(workers, runs, strict=True):
        worker.stop()
        await join(run)
    assert (await inspector.tasks.info(QUEUE)).open_by_kind == {"clean": 0}
    assert raw.hlen("{jobs}:unique") == 0


async def test_a_schedule_is_found_among_many_delayed_tasks(inspector: Inspector, queue: RedisTaskQueue) -> None:
    await queue.enqueue_many([Task(kind="a") for _ in range(3_000)], delay=60)
    later = datetime.now(UTC) + timedelta(days=1)
    for moment in (later + timedelta(days=1), later):
        await queue.enqueue(Task(kind="b", id=f"cron.nightly.{moment:%Y%m%d}"), at=moment)
    [found] = await inspector.schedules.of(QUEUE)
    assert (found.name, found.kind, found.next_task_id) == ("nightly", "b", f"cron.nightly.{later:%Y%m%d}")
    with pytest.raises(NotFound, match="no schedule 'daily'"):
        await inspector.schedules.pause(QUEUE, "daily")
    with pytest.raises(NotFound, match="no schedule 'daily'"):
        await inspector.schedules.resume(QUEUE, "daily")


async def test_an_unknown_queue_is_not_found(inspector: Inspector) -> None:
    assert await inspector.tasks.all() == []
    for call in (inspector.tasks.info, inspector.tasks.tasks, inspector.schedules.of):
        with pytest.raises(NotFound, match="task queue 'nothing' does not exist"):
            await call("nothing")


async def test_an_entry_that_is_no_task_is_shown_with_the_reason(
    inspector: Inspector, queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue(Task(kind="a", id="one"))
    raw.xadd("jobs.tasks", {"data": b"\xff", "task_id": "bad", "kind": "a"})
    page = await inspector.tasks.tasks(QUEUE)
    assert [task.id for task in page.items] == ["one", "bad"]
    assert page.items[1].error


async def test_a_schedule_whose_next_task_cannot_be_read_says_why_it_is_not_run(
    redis_url: str, inspector: Inspector
) -> None:
    async with StreamClient.from_url(redis_url, protection=Protection("sign", {"one": b"k" * 32})) as client:
        queue = RedisTaskQueue(client, QUEUE)
        await queue.enqueue(Task(kind="report", id="cron.nightly.1"), delay=3_600)
        with pytest.raises(DecodeError, match="next task of schedule 'nightly' of queue 'jobs' cannot be copied: "):
            await inspector.schedules.run(QUEUE, "nightly")
        assert await Inspector(client).schedules.run(QUEUE, "nightly")


# --- large tasks ------------------------------------------------------------------------------------


async def pages_of(inspector: Inspector, state: TaskState, **options: int) -> list[list[TaskInfo]]:
    """Returns the tasks in a state, page by page."""
    found, cursor = list[list[TaskInfo]](), ""
    while True:
        page = await inspector.tasks.tasks(QUEUE, state, cursor=cursor, **options)
        found.append(list(page.items))
        cursor = page.cursor
        if not cursor:
            return found


@pytest.fixture
async def large_tasks(queue: RedisTaskQueue) -> RedisTaskQueue:
    """Puts twelve tasks of 200 kB into each state."""
    payload = {"text": "x" * 200_000}
    for state, delay in (("done", None), ("running", None), ("waiting", None), ("queued", None), ("scheduled", 60)):
        for n in range(12):
            task = Task(kind="render", id=f"{state}-{n:02}", payload=payload, requires=frozenset({"gpu"}))
            await queue.enqueue(task, delay=delay)
        taken = [await queue.pop() for _ in range(12)] if state in {"done", "running", "waiting"} else []
        for popped in filter(None, taken):
            if state == "waiting":
                await queue.nack(popped.id, delay=60)
            elif state == "done":
                await queue.push_result(Result(task_id=popped.id, kind="render", data=payload))
                await queue.ack(popped.id)
    return queue


@pytest.mark.every_server
async def test_large_tasks_are_read_in_pieces_that_are_bounded_by_bytes(
    inspector: Inspector, large_tasks: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = list[int]()

    class Counted:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._connection, name)
            if name not in {"call", "pipeline"}:
                return found

            async def counted(*args: Any, **options: Any) -> Any:
                reply = await found(*args, **options)
                received.append(weight(reply))
                return reply

            return counted

    known = dict[int, Counted]()
    really = type(inspector.client).connection

    async def connection(self: StreamClient, *args: Any, **options: Any) -> Any:
        found = await really(self, *args, **options)
        return known.setdefault(id(found), Counted(found))

    monkeypatch.setattr(type(inspector.client), "connection", connection)
    for state in (TaskState.QUEUED, TaskState.RUNNING, TaskState.WAITING, TaskState.SCHEDULED, TaskState.DONE):
        received.clear()
        pages = await pages_of(inspector, state)
        tasks = [task for page in pages for task in page]
        assert sorted(task.id for task in tasks) == [f"{state.value}-{n:02}" for n in range(12)]
        assert all((task.payload or task.result)["text"] for task in tasks), state
        assert sum(received) > 2_400_000, state
        assert max(received) < 1_000_000, state
        received.clear()
        [task, *others] = [task for page in await pages_of(inspector, state, max_value_bytes=1_000) for task in page]
        assert len(others) == 11
        assert sum(received) < 50_000, state
        assert (task.kind, task.payload, task.result, task.is_cut, task.error) == ("render", None, None, True, "")
        assert task.requires == (() if state is TaskState.DONE else ("gpu",))
        begun = {TaskState.RUNNING: 1, TaskState.WAITING: 1, TaskState.DONE: None}  # None: it is in the part left out
        assert task.attempts == begun.get(state, 0)
        assert task.status == ("ok" if state is TaskState.DONE else "")
        assert task.consumer == (large_tasks.consumer if state in {TaskState.RUNNING, TaskState.WAITING} else "")


def weight(reply: Any) -> int:
    """Returns the bytes of all strings in a reply."""
    if isinstance(reply, list | tuple):
        return sum(map(weight, reply))
    return len(reply) if isinstance(reply, bytes) else 0


async def test_a_small_task_is_shown_whole_beside_large_ones(inspector: Inspector, queue: RedisTaskQueue) -> None:
    await queue.enqueue(Task(kind="a", id="large", payload={"text": "x" * 5_000}))
    await queue.enqueue(Task(kind="a", id="small", payload={"text": "x"}))
    page = await inspector.tasks.tasks(QUEUE, max_value_bytes=1_000)
    assert [(task.id, task.is_cut, task.payload) for task in page.items] == [
        ("large", True, None),
        ("small", False, {"text": "x"}),
    ]


async def test_an_entry_that_is_no_task_is_called_so_however_long_its_other_fields_are(
    inspector: Inspector, queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue(Task(kind="a", id="first"))
    raw.xadd(f"{QUEUE}.tasks", {"data": "no task", "task_id": "one", "other": "x" * 5_000})
    [_, task] = (await inspector.tasks.tasks(QUEUE, max_value_bytes=1_000)).items
    assert (task.id, task.is_cut) == ("one", False)
    assert "not a valid task" in task.error


async def test_ids_are_found_by_their_beginning_without_a_look_at_the_tasks(
    inspector: Inspector, large_tasks: RedisTaskQueue, raw: redis.Redis
) -> None:
    raw.config_resetstat()
    assert await inspector.tasks.begin_with(QUEUE, "scheduled-0") == ([f"scheduled-{n:02}" for n in range(10)], True)
    assert await inspector.tasks.begin_with(QUEUE, "done-11") == (["done-11"], True)
    assert len((await inspector.tasks.begin_with(QUEUE, ""))[0]) == 60
    assert await inspector.tasks.begin_with(QUEUE, "*") == ([], True)
    assert {"cmdstat_xrange", "cmdstat_hget", "cmdstat_hmget"}.isdisjoint(raw.info("commandstats"))
    with pytest.raises(NotFound):
        await inspector.tasks.begin_with("nothing", "x")


async def test_a_search_for_ids_says_when_it_gave_up(
    inspector: Inspector, queue: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue_many([Task(kind="a", id=f"task-{n}") for n in range(3_000)])
    monkeypatch.setattr(tasks_module, "_MAX_SCANS", 1)
    found, is_complete = await inspector.tasks.begin_with(QUEUE, "task-")
    assert 0 < len(found) < 3_000
    assert not is_complete


async def test_the_kinds_of_schedules_are_found_however_large_their_tasks_are(
    inspector: Inspector, queue: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(12):
        task = Task(kind=f"kind-{n:02}", id=f"cron.s-{n:02}.1", payload={"text": "x" * 200_000})
        await queue.enqueue(task, delay=60 + n)
    assert [(each.name, each.kind) for each in await inspector.schedules.of(QUEUE)] == [
        (f"s-{n:02}", f"kind-{n:02}") for n in range(12)
    ]
    monkeypatch.setattr(schedules_module, "_MAX_KINDS", 2)
    assert [each.kind for each in await inspector.schedules.of(QUEUE)] == ["kind-00", "kind-01", *[""] * 10]
