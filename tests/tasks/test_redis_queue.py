"""What a task queue leaves in Redis, reads from it, and makes of what others wrote."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
import redis

from penstock.errors import ConfigurationError, OutOfMemory
from penstock.events import Event
from penstock.redis.reading import PageLimits
from penstock.redis.scripts import script
from penstock.task import Priority, Result, Task
from penstock.tasks import Handlers, RedisTaskQueue, Worker
from penstock.tasks.lane_store import LaneStore
from penstock.testing.task_queue_contract import in_first_run
from tests.helpers import threads
from tests.helpers.ageing import Ageing
from tests.helpers.aio import DEADLINE_S, eventually, join, start
from tests.helpers.commandstats import calls
from tests.helpers.round_trips import count_round_trips
from tests.tasks.stage import quick

pytestmark = [pytest.mark.usefixtures("default_server")]


def entries(raw: redis.Redis, key: str) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in raw.xrange(key)]


async def finish(queue: RedisTaskQueue, task: Task, data: Any = None) -> bool:
    return (await queue.finish_many([Result(task_id=task.id, kind=task.kind, data=data)]))[0]


# --- what is written ------------------------------------------------------------------------------


async def test_tasks_results_and_dead_letters_are_in_streams_of_the_queues_name(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task, bad = Task(kind="render"), Task(kind="bad")
    await queue.enqueue_many([task, bad])
    assert entries(raw, "jobs.tasks")[0] == {
        b"data": msgspec.msgpack.encode(task), b"task_id": task.id.encode(), b"kind": b"render",
    }  # fmt: skip
    await queue.pop_many(2)
    await finish(queue, task, 42)
    await queue.dead_letter(bad.id, text="no use")
    [result, error] = entries(raw, "jobs.results")
    assert (result[b"task_id"], result[b"kind"], result[b"status"]) == (task.id.encode(), b"render", b"ok")
    assert msgspec.msgpack.decode(result[b"data"])["data"] == 42
    assert (error[b"status"], json.loads(error[b"data"])["error"]) == (b"error", "no use")
    [letter] = entries(raw, "jobs.dead")
    assert (letter[b"task_id"], letter[b"dlq_reason"], letter[b"data"]) == (
        bad.id.encode(), b"fatal", msgspec.msgpack.encode(bad),
    )  # fmt: skip


async def test_a_settled_queue_keeps_nothing_but_results(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    tasks = [Task(kind="render", unique=f"u{n}", priority=Priority.HIGH) for n in range(10)]
    await queue.enqueue_many(tasks)
    later = Task(kind="later")
    await queue.enqueue(later, delay=0.01)
    for _ in range(2):
        found = [await queue.pop(timeout=DEADLINE_S) for _ in range(11)]
        assert {task.id for task in found if task} == {later.id, *(task.id for task in tasks)}
        if found[0] and found[0].attempts == 1:
            for task in found:
                assert task
                assert await queue.nack(task.id)
    for task in found:
        assert task
        assert await finish(queue, task)
    await queue.trim()
    kept = {key.decode() for key in raw.scan_iter()}
    assert kept == {
        "jobs.tasks", "jobs.tasks.high", "jobs.results", "{jobs}:done", "{jobs}:lanes",
        "{jobs}:counts",
    }  # fmt: skip
    assert raw.xlen("jobs.tasks") == raw.xlen("jobs.tasks.high") == 0


async def test_work_never_expires_and_results_do(redis_url: str, raw: redis.Redis) -> None:
    async with RedisTaskQueue(redis_url, "jobs", result_ttl_ms=3_000) as queue:
        old, new, waiting = Task(kind="render"), Task(kind="render"), Task(kind="render")
        await queue.enqueue_many([old, waiting])
        await queue.pop()
        await finish(queue, old)
        assert {raw.ttl(key) for key in raw.scan_iter()} == {-1}
        expires_at = time.time() + 3.01
        while time.time() < expires_at:
            assert await queue.wait_for_result("nothing", 0.1) is None
        await queue.enqueue(new)
        await queue.pop_many(2)
        await finish(queue, new)
        await queue.trim()
        assert await queue.get_result(old.id) is None
        assert await queue.get_result(new.id) is not None
        assert raw.hkeys("{jobs}:done") == [new.id.encode()]
        assert await queue.pending_count() == 1


@pytest.mark.acl(queue=("one", "two"))
async def test_two_queues_of_one_server_do_not_meet(redis_url: str) -> None:
    async with RedisTaskQueue(redis_url, "one") as one, RedisTaskQueue(redis_url, "two") as two:
        await one.enqueue(Task(kind="render"))
        assert await two.pop(block=False) is None
        assert await one.pop(block=False) is not None


# --- what others wrote ----------------------------------------------------------------------------


async def test_a_task_that_was_written_by_hand_is_done(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    raw.xadd("jobs.tasks", {"data": '{"kind": "render", "id": "by-hand", "unknown": [1], "payload": {"n": 1}}'})
    task = await queue.pop(block=False)
    assert task is not None
    assert (task.id, task.payload) == ("by-hand", {"n": 1})
    assert await finish(queue, task, "done")
    result = await queue.wait_for_result("by-hand", 0)
    assert result is not None
    assert result.data == "done"


@pytest.mark.parametrize("sequence", [10**15, 2**53 - 2, 2**53, 2**64 - 60])
async def test_an_entry_with_a_great_id_costs_no_other_task(
    queue: RedisTaskQueue, raw: redis.Redis, sequence: int
) -> None:
    raw.xadd("jobs.tasks", {"data": "junk"}, id=f"{int(time.time() * 1000) + 86_400_000}-{sequence}")
    assert await queue.pop(block=False) is None
    tasks = [Task(kind="render") for _ in range(20)]
    await queue.enqueue_many(tasks)
    await queue.trim()
    found = await queue.pop_many(5)
    await queue.trim()
    await queue.finish_many([Result(task_id=task.id, kind=task.kind) for task in found])
    await queue.trim()
    found += await queue.pop_many(20)
    assert [task.id for task in found] == [task.id for task in tasks]


@pytest.mark.parametrize(
    "fields",
    [
        {"data": b"\xc1\xff"},
        {"data": ""},
        {"other": "1"},
        {"data": "[1, 2]"},
        {"data": '{"kind": ""}'},
        {"data": '{"id": "x"}'},
        {"data": '{"kind": "render", "id": "../etc"}'},
        {"data": b"{" * 100_000},
    ],
)
async def test_what_is_no_task_becomes_a_dead_letter_and_stops_nobody(
    queue: RedisTaskQueue, raw: redis.Redis, fields: dict[str, Any]
) -> None:
    before, behind = Task(kind="render"), Task(kind="render")
    await queue.enqueue(before)
    raw.xadd("jobs.tasks", fields)
    await queue.enqueue(behind)
    assert [task.id for task in await queue.pop_many(10)] == [before.id, behind.id]
    [letter] = entries(raw, "jobs.dead")
    assert letter[b"dlq_reason"] == b"decode_error"
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 2


async def test_the_last_run_of_a_task_whose_workers_died_has_no_neighbours(
    queue: RedisTaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    tasks = [Task(kind="work") for _ in range(3)]
    await queue.enqueue_many(tasks)
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        await dead.pop_many(3)
    # As if each had been in the hands of workers that died, the first one until its last run.
    keys = queue.keys.tasks()
    for number, (entry_id, _) in enumerate(raw.xrange("jobs.tasks")):
        raw.hset(keys.attempts("jobs"), entry_id, 1 if number else queue.max_retry)
        raw.sadd(queue.keys.suspects(), entry_id)
        raw.zadd(keys.retries("jobs"), {entry_id: 0})
    assert [task.id for task in await queue.pop_many(10)] == [tasks[0].id]
    assert await queue.pop_many(10, block=False) == []
    await finish(queue, tasks[0])
    found = await queue.pop_many(10, timeout=DEADLINE_S)
    assert {task.id for task in found} <= {task.id for task in tasks[1:]}


async def test_a_task_that_ran_alone_keeps_no_other_waiting_when_it_is_done(
    queue: RedisTaskQueue, other: RedisTaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        await dead.enqueue(Task(kind="work"))
        await dead.pop_many(1)
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 1
    raw.hset(queue.keys.tasks().attempts("jobs"), raw.xrange("jobs.tasks")[0][0], queue.max_retry)
    [lone] = await queue.pop_many(1)
    await finish(queue, lone)
    task = Task(kind="work")
    await queue.enqueue(task)
    assert await queue.pop(block=False) == in_first_run(task)


async def test_what_waits_for_a_lone_task_is_put_aside_in_one_step(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue_many([Task(kind="work") for _ in range(30)])
    await queue.pop_many(30)
    keys = queue.keys.tasks()
    async with RedisTaskQueue(queue.client, "jobs") as other:
        for entry_id, _ in raw.xrange("jobs.tasks"):
            raw.hset(keys.attempts("jobs"), entry_id, queue.max_retry)
            raw.sadd(queue.keys.suspects(), entry_id)
            raw.zadd(keys.retries("jobs"), {entry_id: 0})
        trips = count_round_trips(monkeypatch, await queue.client.connection(""))
        assert len(await other.pop_many(30)) == 1
        assert len(trips) < 15, "none for each of the tasks"


async def test_few_tasks_of_dead_workers_are_taken_at_once_and_all_that_failed(
    queue: RedisTaskQueue, other: RedisTaskQueue, redis_url: str
) -> None:
    tasks = [Task(kind="render") for _ in range(50)]
    await queue.enqueue_many(tasks)
    for task in await queue.pop_many(50):
        await queue.nack(task.id)
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        assert len(await dead.pop_many(50)) == 50
    assert await eventually(lambda: other.requeue_orphans(1, 100)) == 50
    first, then = await queue.pop_many(50), await other.pop_many(50)
    assert 0 < len(first) <= 20, "should one of them kill the worker, the others are free for the next"
    assert then
    assert not {task.id for task in first} & {task.id for task in then}


async def failed_once(queue: RedisTaskQueue, count: int = 1) -> list[Task]:
    """Returns tasks that wait for their second run."""
    await queue.enqueue_many([Task(kind="render") for _ in range(count)])
    tasks = await queue.pop_many(count)
    for task in tasks:
        await queue.nack(task.id)
    return tasks


@pytest.mark.parametrize("has_begun", [False, True])
async def test_only_a_run_that_began_counts_when_its_worker_dies(
    queue: RedisTaskQueue, other: RedisTaskQueue, redis_url: str, has_begun: bool
) -> None:
    await failed_once(queue)
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        [task] = await dead.pop_many(1, begin=False)
        assert task.attempts == 2
        if has_begun:
            assert await dead.begin(task)
            assert await dead.begin(task), "recorded once"
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 1
    assert [task.attempts for task in await queue.pop_many(1)] == [3 if has_begun else 2]


async def test_tasks_that_have_not_begun_are_handed_back_together(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.script_load(script("streams/park").source)
    await queue.enqueue_many([Task(kind="render") for _ in range(30)])
    await failed_once(queue)
    first = await queue.pop_many(20, begin=False)
    trips = count_round_trips(monkeypatch, await queue.client.connection(""))
    assert await queue.hand_back(first) == 20
    assert len(trips) == 1
    assert await queue.hand_back(first) == 0
    found = [*await other.pop_many(40), *await other.pop_many(40)]  # new ones, then those that wait
    assert sorted(task.attempts for task in found) == [1] * 30 + [2]


async def test_a_worker_that_stops_hands_back_what_has_not_begun(
    queue: RedisTaskQueue, other: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers, handed_back, begun = Handlers(), list[int](), list[Task]()
    handlers.task("render")(begun.append)
    hand_back = queue.hand_back

    async def look(tasks: Any = None) -> int:
        handed_back.append(len(tasks or ()))
        return await hand_back(tasks)

    monkeypatch.setattr(queue, "hand_back", look)
    await queue.enqueue_many([Task(kind="render") for _ in range(20)])
    worker = quick(queue, handlers)
    await worker._accept(await queue.pop_many(20, begin=False))
    worker.stop()
    await join(start(worker.run))
    assert not begun
    assert sum(handed_back) == 20
    assert max(handed_back) > 20 - worker.concurrency, "together, but for one that each worker may have taken"
    assert [task.attempts for task in await other.pop_many(20)] == [1] * 20


async def test_a_task_that_never_began_is_handed_back_with_its_attempts_and_its_suspicion(
    queue: RedisTaskQueue, other: RedisTaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        await dead.enqueue(Task(kind="render"))
        await dead.pop_many(1)
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 1
    for _ in range(3):
        [task] = await queue.pop_many(1, begin=False)
        assert task.attempts == 2
        assert await queue.nack(task.id, counts=False)
    assert raw.scard(queue.keys.suspects()) == 1
    [task] = await queue.pop_many(1)
    assert await queue.nack(task.id)
    assert raw.scard(queue.keys.suspects()) == 0


async def test_a_task_that_another_worker_has_meanwhile_does_not_begin(
    queue: RedisTaskQueue, other: RedisTaskQueue
) -> None:
    await failed_once(queue)
    [task] = await queue.pop_many(1, begin=False)
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 1
    [again] = await other.pop_many(1, begin=False)
    assert not await queue.begin(task)
    assert await other.begin(again)


async def test_a_copy_of_a_task_that_was_lost_and_taken_again_does_not_begin(queue: RedisTaskQueue) -> None:
    await failed_once(queue)
    [task] = await queue.pop_many(1, begin=False)
    queue.abandon(task.id, has_run=False)
    [again] = await queue.pop_many(1, begin=False)
    assert again == task
    assert not await queue.begin(task)
    assert await queue.begin(again)


async def test_tasks_whose_workers_died_begin_one_after_the_other(
    queue: RedisTaskQueue, other: RedisTaskQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, run = 0, 0, queue.client.run

    async def counted_run(name: str, *args: Any) -> Any:
        nonlocal under_way, most
        under_way += name == "streams/begin"
        most = max(most, under_way)
        try:
            return await run(name, *args)
        finally:
            under_way -= name == "streams/begin"

    async with RedisTaskQueue(redis_url, "jobs") as dead:
        await dead.enqueue_many([Task(kind="render") for _ in range(4)])
        await dead.pop_many(4)
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 4
    tasks = await queue.pop_many(4, begin=False)
    monkeypatch.setattr(queue.client, "run", counted_run)
    beginnings = [start(queue.begin, task) for task in tasks]
    for beginning in beginnings:
        await join(beginning)
    assert (len(tasks), most) == (4, 1)


async def test_a_task_whose_first_worker_dies_in_its_last_run_runs_once_more_and_alone(
    queue: RedisTaskQueue, other: RedisTaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    await queue.enqueue(Task(kind="render"))
    for _ in range(queue.max_retry):
        [task] = await queue.pop_many(1)
        await queue.nack(task.id)
    await queue.enqueue(Task(kind="render"))
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        found = await dead.pop_many(2)
        found += await dead.pop_many(2)
        assert len(found) == 2  # its last run, with a neighbour that may be to blame
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 2
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        [last] = await dead.pop_many(2)
        assert (last.id, last.attempts) == (task.id, queue.max_retry + 1)
        assert await dead.pop_many(2, block=False) == []
    while not raw.xlen("jobs.dead"):
        await other.requeue_orphans(1, 10)
    assert [letter[b"task_id"].decode() for letter in entries(raw, "jobs.dead")] == [task.id]


async def test_the_tasks_of_dead_workers_are_named(
    redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisTaskQueue(redis_url, "jobs", max_retry=0) as queue:
        tasks = [Task(kind="render", id=f"t-{n}") for n in range(7)]
        await queue.enqueue_many(tasks)
        await queue.pop_many(7)

        async def are_dead() -> bool:
            await queue.requeue_orphans(1, 10)
            return bool(raw.xlen("jobs.dead") == 7)

        await eventually(are_dead)
    assert "died: t-0, t-1, t-2, t-3, t-4 and 2 more" in caplog.text


async def test_an_entry_that_was_deleted_in_hand_stops_nobody(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue_many([Task(kind="render") for _ in range(3)])
    await queue.pop_many(3)
    raw.xdel("jobs.tasks", raw.xrange("jobs.tasks")[1][0])
    freed = 0
    while freed < 2:
        freed += await other.requeue_orphans(1, 10)
    assert len(await other.pop_many(3)) == 2
    assert [letter[b"dlq_reason"] for letter in entries(raw, "jobs.dead")] == [b"missing"]


async def test_no_script_reads_more_than_a_few_large_tasks_to_free_them(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue_many([Task(kind="render", payload={"data": "x" * 300_000}) for _ in range(20)])
    while len(await queue.list_pending()) < 20:
        await queue.pop_many(20)
    before = calls(raw, "evalsha") + calls(raw, "eval")
    assert await eventually(lambda: other.requeue_orphans(1, 50)) == 20
    assert calls(raw, "evalsha") + calls(raw, "eval") - before >= 10


async def test_thousands_that_wait_do_not_hide_what_a_dead_worker_had_in_hand(
    queue: RedisTaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    async with RedisTaskQueue(redis_url, "jobs") as dead:
        await dead.enqueue_many([Task(kind="render") for _ in range(6_000)])
        while len(raw.xpending_range("jobs.tasks", "jobs", "-", "+", 6_000)) < 6_000:
            await dead.pop_many(1_000)
    held = [row[0] for row in raw.xrange("jobs.tasks")]
    raw.zadd(queue.keys.tasks().retries("jobs"), dict.fromkeys(held[1:-1], 1e15))  # as a rate limit leaves them
    idle_ms = 5
    await eventually(lambda: all(row["idle"] >= idle_ms for row in raw.xinfo_consumers("jobs.tasks", "jobs")))
    assert await queue.requeue_orphans(idle_ms, 10) == 2
    assert [task.attempts for task in await queue.pop_many(10)] == [2, 2]
    for entry_id in (held[0], held[-1]):
        [row] = raw.xpending_range("jobs.tasks", "jobs", entry_id, entry_id, 1)
        assert row["consumer"] == queue.consumer.encode()


# --- outages --------------------------------------------------------------------------------------


async def test_an_emptied_server_is_worked_on_as_before(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    await queue.enqueue(Task(kind="render"))
    await queue.pop()
    raw.flushall()
    assert await queue.pop(block=False) is None
    task = Task(kind="render")
    await queue.enqueue(task)
    assert await queue.pop(timeout=DEADLINE_S) == in_first_run(task)
    raw.xgroup_destroy("jobs.tasks", "jobs")
    again = Task(kind="render")
    await queue.enqueue(again)
    seen = set()
    while again.id not in seen:
        found = await queue.pop(timeout=DEADLINE_S)
        assert found is not None
        seen.add(found.id)


async def test_a_group_that_was_destroyed_hands_out_what_is_open_and_nothing_that_was_done(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    tasks = [Task(kind="render") for _ in range(20)]
    await queue.enqueue_many(tasks)
    for task in await queue.pop_many(12):
        await finish(queue, task)
    raw.xgroup_destroy("jobs.tasks", "jobs")
    raw.xadd("jobs.tasks", {"data": '{"kind": "render", "id": "by-hand"}'})
    found = [*await queue.pop_many(5), *await other.pop_many(20)]
    assert [task.id for task in found] == [*(task.id for task in tasks[12:]), "by-hand"]
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 9


async def test_a_full_server_refuses_a_task_and_lets_the_others_be_taken(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    tasks = [Task(kind="render") for _ in range(5)]
    await queue.enqueue_many(tasks)
    assert await queue.pop() is not None
    raw.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemory):
        await queue.enqueue(Task(kind="render"))
    with pytest.raises(OutOfMemory):
        await finish(queue, tasks[0])
    raw.config_set("maxmemory", "0")
    assert await finish(queue, tasks[0])
    assert await queue.pending_count() == 4


async def test_dead_letters_for_which_the_server_has_no_room_are_written_later(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    first, second = Task(kind="render"), Task(kind="render")
    await queue.enqueue_many([first, second])
    assert await queue.pop() is not None
    raw.xadd("jobs.tasks", {"data": b"no task"})
    raw.xadd("jobs.tasks", {"data": msgspec.msgpack.encode(first)})  # open in another entry
    raw.config_set("maxmemory", "1")
    try:
        assert await queue.pop_many(10) == [in_first_run(second)]
        assert await queue.dead.count() == 0
    finally:
        raw.config_set("maxmemory", "0")
    for lane in await queue._lanes.all():
        for entry_id in raw.zrange(lane.retries, 0, -1):
            raw.zadd(lane.retries, {entry_id: 1})
        await queue._reader.due_soon(lane.lane, 0)
    assert await queue.pop_many(10, block=False) == []
    assert [letter.reason async for letter in queue.dead.iterate()] == ["decode_error", "invalid"]


# --- waiting --------------------------------------------------------------------------------------


async def test_waiting_for_a_result_asks_for_its_key_and_not_for_the_others(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    tasks = [Task(kind="render") for _ in range(300)]
    await queue.enqueue_many(tasks)
    found = await queue.pop_many(300)
    waiting = start(other.wait_for_result, tasks[-1].id, DEADLINE_S)
    while raw.zscore("{jobs}:awaited", tasks[-1].id) is None:
        assert await other.wait_for_result("nothing", 0.01) is None
    await queue.finish_many([Result(task_id=task.id, kind=task.kind) for task in found[:-1]])
    raw.config_resetstat()
    await finish(queue, tasks[-1], "last")
    result = await join(waiting)
    assert result.data == "last"
    calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert "cmdstat_xread" not in calls
    assert calls["cmdstat_xrange"] <= 2
    assert raw.zscore("{jobs}:awaited", tasks[-1].id) is None


async def test_a_result_whose_notice_got_lost_is_found_by_looking(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue(Task(kind="render"))
    task = await queue.pop()
    assert task is not None
    waiting = start(other.wait_for_result, task.id, DEADLINE_S)
    while raw.zscore("{jobs}:awaited", task.id) is None:
        assert await queue.wait_for_result("nothing", 0.01) is None
    raw.delete("{jobs}:awaited")
    await finish(queue, task, 1)
    assert (await join(waiting)).data == 1


# --- cost -----------------------------------------------------------------------------------------


async def test_a_worker_needs_few_commands_when_batches_fill(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    handlers = Handlers()

    @handlers.task("noop")
    async def noop(task: Task) -> None:
        return None

    await queue.enqueue_many([Task(kind="noop") for _ in range(5_000)])
    raw.config_resetstat()
    report = await Worker(queue, handlers, burst=True, handle_signals=False).run()
    assert report.ok == 5_000
    calls = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert sum(calls.values()) <= 0.5 * 5_000  # those inside scripts included
    assert calls["evalsha"] <= 0.05 * 5_000
    assert raw.hlen("{jobs}:done") == 5_000


async def test_results_that_come_together_are_found_each_by_its_task(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    # 64 of them share an entry, or fewer that are large; a result by itself has one of its own.
    tasks = [Task(kind="render") for _ in range(150)]
    await queue.enqueue_many(tasks)
    found = await queue.pop_many(150)
    sizes = [70_000 if n in (10, 11) else n for n in range(150)]
    results = [
        Result(task_id=task.id, kind=task.kind, data="x" * size) for task, size in zip(found, sizes, strict=True)
    ]
    assert await queue.finish_many(results) == [True] * 150
    assert raw.xlen("jobs.results") == 6  # 0-9, 10, 11, 12-75, 76-139, 140-149
    for task, size in zip(found, sizes, strict=True):
        result = await queue.get_result(task.id)
        assert result is not None
        assert (result.task_id, len(str(result.data))) == (task.id, size)
    assert await queue.push_result(Result(task_id=found[77].id, kind="render", data="another")) is False
    assert await queue.push_result(results[77]) is True


async def test_a_worker_without_work_asks_seldom(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    handlers = Handlers()
    handlers.task("noop")(lambda _: None)
    await queue.enqueue(Task(kind="other"))
    await queue.enqueue(Task(kind="noop", requires=frozenset({"gpu"})))
    raw.config_resetstat()
    await Worker(queue, handlers, max_uptime_ms=2_000, handle_signals=False).run()
    calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] < 40  # it looks at most a few times a second, though two tasks wait for others
    assert await queue.pending_count() == 2


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"max_retry": -1}, {"idle_ms": 0}, {"encoding": "xml"}, {"result_ttl_ms": 0}, {"name": " "}]
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RedisTaskQueue("redis://localhost:1", **options)


async def test_gauges_look_at_what_is_in_hand_page_by_page(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tasks.gauges._FEW", 1)
    monkeypatch.setattr("penstock.tasks.gauges._MANY", 2)
    await queue.enqueue_many([Task(kind="render") for _ in range(10)])
    await queue.pop_many(10)
    oldest = raw.xpending_range("jobs.tasks", "jobs", "-", "+", 10)[7]["message_id"]
    raw.xclaim("jobs.tasks", "jobs", queue.consumer, 0, [oldest], idle=5_000_000)
    [lane] = (await queue.gauges()).lanes
    assert lane.in_hand == 10
    assert lane.idle_max_s >= 5_000


async def test_to_look_at_a_queue_writes_nothing(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    async def look() -> tuple[int, list[Task], int]:
        gauges = await queue.gauges()
        return gauges.open, await queue.list_tasks(), len(await queue.list_pending()) + gauges.lanes[0].in_hand

    assert await look() == (0, [], 0)
    assert raw.keys() == []
    task = Task(kind="render")
    await queue.enqueue(task)
    raw.xgroup_destroy("jobs.tasks", "jobs")  # as a server that was restored from an old snapshot has none
    assert await look() == (1, [task], 0)
    assert raw.xinfo_groups("jobs.tasks") == []
    assert await queue.pop() == in_first_run(task)
    assert (await look())[2] == 2


async def test_all_open_tasks_are_listed_page_by_page(queue: RedisTaskQueue) -> None:
    tasks = [Task(kind="render") for _ in range(60)]
    await queue.enqueue_many(tasks)
    assert [task.id for task in await queue.list_tasks(limit=100)] == [task.id for task in tasks]
    assert [task.id for task in await queue.list_tasks(limit=20, offset=30)] == [task.id for task in tasks[30:50]]


@pytest.mark.parametrize("is_scheduled", [False, True])
async def test_large_tasks_are_listed_a_few_at_once(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_scheduled: bool
) -> None:
    tasks, pages = [Task(kind="render", payload={"data": "x" * 100_000}) for _ in range(40)], list[int]()
    await queue.enqueue_many(tasks, delay=3600 if is_scheduled else 0)
    while not is_scheduled and len(await queue.list_pending()) < 40:
        await queue.pop_many(40)
    after = PageLimits.after

    def noted(limits: PageLimits, found: int, size: int) -> int:
        pages.append(size)
        return after(limits, found, size)

    monkeypatch.setattr(PageLimits, "after", noted)
    found = await queue.list_tasks(100) if is_scheduled else [held.task for held in await queue.list_pending()]
    assert sorted(task.id for task in found) == sorted(task.id for task in tasks)
    assert pages[0] <= 17 * 100_100
    assert max(pages[1:]) <= 11 * 100_100


async def test_tasks_in_hand_are_listed_in_a_few_questions_a_lane(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [Task(kind="render") for _ in range(40)]
    for task in tasks:
        await queue.enqueue(task)
    await queue.pop_many(40)
    await queue.nack(tasks[3].id, delay=60.0)
    await other.list_pending()  # it is connected from here on
    trips = count_round_trips(monkeypatch, await other.client.connection(""))
    found = await other.list_pending()
    assert len(trips) == 5, "which lanes there are, what is pending in the only one, about that, and two pages of it"
    assert [hand.id for hand in found] == [task.id for task in tasks]
    assert [hand.id for hand in found if hand.due_in_ms is not None] == [tasks[3].id]
    assert 0 < (found[3].due_in_ms or 0) <= 60_000
    assert {hand.consumer for hand in found} == {queue.consumer}
    assert [hand.task.attempts for hand in found] == [1] * 40


async def test_a_queue_tells_of_tasks_whose_holders_were_silent(redis_url: str, other: RedisTaskQueue) -> None:
    events: list[Event] = []
    async with RedisTaskQueue(redis_url, "jobs", max_retry=1, on_event=events.append) as queue:
        task = Task(kind="render")
        await queue.enqueue(task)
        assert await other.pop() is not None
        assert await queue.requeue_orphans(idle_ms=0) == 1
        assert await other.pop(timeout=DEADLINE_S) is not None
        assert await queue.requeue_orphans(idle_ms=0) == 0
        [letter] = [letter async for letter in queue.dead.iterate()]
        assert (letter.error, "in attempt 2" in letter.error_text) == ("WorkerDied", True)
    assert [(str(event.name), dict(event.fields)) for event in events] == [
        ("reclaimed", {"count": 1}),
        ("dead_lettered", {"id": task.id, "reason": "max_deliveries", "error": ""}),
    ]


async def test_what_was_redriven_is_told_by_its_task_and_what_came_back_too_often_stays(queue: RedisTaskQueue) -> None:
    tasks = [Task(kind="render") for _ in range(3)]
    await queue.enqueue_many(tasks)
    for reason in ("fatal", "odd", "fatal"):
        task = await queue.pop()
        assert task is not None
        await queue.dead_letter(task.id, reason)
    assert await queue.dead.redrive(reason="odd") == [tasks[1].id]
    assert await queue.dead.redrive(limit=1) == [tasks[0].id]
    [left] = [letter async for letter in queue.dead.iterate()]
    assert await queue.dead.redrive(["1-1", left.id]) == [tasks[2].id]
    for _ in range(2):
        for _ in range(3):
            task = await queue.pop()
            assert task is not None
            await queue.dead_letter(task.id)
        assert len(await queue.dead.redrive()) == 3
    for _ in range(3):
        task = await queue.pop()
        assert task is not None
        await queue.dead_letter(task.id)
    assert await queue.dead.redrive() == []
    assert len(await queue.dead.redrive(max_redrives=4)) == 3
    with pytest.raises(ConfigurationError, match="max_redrives=0 must be positive"):
        await queue.dead.redrive(max_redrives=0)


# --- leases ---------------------------------------------------------------------------------------


async def test_a_task_that_is_done_keeps_its_lease_until_the_server_has_settled_it(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_now = LaneStore.finish
    leases = {name: Ageing(raw, f"jobs.tasks{name}", "jobs") for name in ("", ".high")}

    async def finish_late(store: LaneStore, *args: Any) -> Any:
        for _ in range(3):
            leases[store.lane.suffix].age()
            threads.eventually(leases[store.lane.suffix].is_renewed)  # as if the next handler blocked the event loop
        return await finish_now(store, *args)

    monkeypatch.setattr(LaneStore, "finish", finish_late)
    await queue.enqueue_many([Task(kind="any"), Task(kind="any", priority=Priority.HIGH)])
    with queue.renewing(50):
        for task in await queue.pop_many(2):
            assert await finish(queue, task)


async def test_a_task_of_another_worker_is_renewed_no_more(
    queue: RedisTaskQueue, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.enqueue(Task(kind="any", priority=Priority.HIGH))
    with queue.renewing(10):
        task = await queue.pop()
        assert task is not None
        [(entry_id, _)] = raw.xrange("jobs.tasks.high")
        raw.xclaim("jobs.tasks.high", "jobs", "thief", 0, [entry_id], justid=True)
        await eventually(lambda: f"to other workers: {task.id}" in caplog.text)
        assert not await finish(queue, task)
    assert raw.xpending("jobs.tasks.high", "jobs")["consumers"] == [{"name": b"thief", "pending": 1}]
