"""Lanes come with their tasks and go when nothing is in them; what others write into the queue costs only itself."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import StreamClient
from penstock.errors import OutOfMemory
from penstock.task import Priority, Result, Task
from penstock.tasks import Handlers, Limits, RedisTaskQueue
from penstock.testing.task_queue_contract import in_first_run
from tests.helpers.aio import DEADLINE_S, join, start
from tests.helpers.commandstats import calls
from tests.tasks.stage import quick

pytestmark = pytest.mark.usefixtures("default_server")

GPU = "jobs.tasks.normal:requires=gpu"


def lanes(raw: redis.Redis) -> set[str]:
    return {name.decode() for name in raw.smembers("{jobs}:lanes")}


def everybody_leaves(raw: redis.Redis, stream: str) -> None:
    for info in raw.xinfo_consumers(stream, "jobs"):
        raw.xgroup_delconsumer(stream, "jobs", info["name"])


async def done(queue: RedisTaskQueue, tasks: list[Task]) -> None:
    assert all(await queue.finish_many([Result(task_id=task.id, kind=task.kind) for task in tasks]))


# --- coming and going -----------------------------------------------------------------------------


async def test_a_lane_goes_when_nothing_is_in_it_and_nobody_reads_it(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    first, second, third = (Task(kind="render", requires=frozenset({"gpu"})) for _ in range(3))
    await queue.enqueue_many([first, second])
    found = await queue.pop_many(1, provides={"gpu"})
    await queue.trim()
    await done(queue, found)
    everybody_leaves(raw, GPU)
    await queue.trim()
    assert lanes(raw) == {"normal:requires=gpu"}, "a task waits in it"
    await done(queue, await queue.pop_many(2, provides={"gpu"}))
    await queue.trim()
    assert lanes(raw) == {"normal:requires=gpu"}, "a worker reads it"
    everybody_leaves(raw, GPU)
    await other.trim()
    assert lanes(raw) == set()
    assert [key for key in raw.scan_iter("*gpu*")] == []  # noqa: C416
    await other.enqueue(third)
    assert await queue.pop_many(1, timeout=DEADLINE_S, provides={"gpu"}) == [in_first_run(third)]


async def test_no_task_is_lost_that_is_added_while_its_lane_goes(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    async def tidy() -> None:
        for _ in range(60):
            await other.trim()

    sent, seen, tidying = [], set(), start(tidy)
    for _ in range(60):
        sent.append(Task(kind="render", requires=frozenset({"gpu"})))
        await queue.enqueue(sent[-1])
        found = await queue.pop_many(5, timeout=DEADLINE_S, provides={"gpu"})
        await done(queue, found)
        seen |= {task.id for task in found}
        everybody_leaves(raw, GPU)
    await join(tidying)
    assert seen == {task.id for task in sent}


async def test_a_scheduled_task_opens_its_lane_when_it_is_due(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    tasks = [
        Task(kind="render", requires=frozenset({"gpu"})), Task(kind="render", priority=Priority.HIGH), Task(kind="render"),
    ]  # fmt: skip
    await queue.enqueue_many(tasks, delay=0.05)
    await queue.trim()
    assert lanes(raw) == {"normal", "high"}, "nothing is in the lane of the first"
    found: set[str] = set()
    while len(found) < 3:
        found |= {task.id for task in await other.pop_many(3, timeout=DEADLINE_S, provides={"gpu"})}
    assert found == {task.id for task in tasks}
    assert "normal:requires=gpu" in lanes(raw)


async def test_a_new_lane_is_not_taken_for_one_that_was_lost(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    await queue.enqueue(Task(kind="render"))
    await done(queue, await queue.pop_many(1))
    await queue.enqueue(Task(kind="render", priority=Priority.HIGH))
    [task] = await queue.pop_many(1, timeout=DEADLINE_S)
    await done(queue, [task])
    fields = {"data": '{"kind": "render", "id": "by-hand"}', "task_id": "by-hand"}
    raw.xadd("jobs.tasks.high", fields)  # type: ignore[arg-type]
    [found] = await queue.pop_many(1, timeout=DEADLINE_S)
    assert found.id == "by-hand"


# --- many lanes -----------------------------------------------------------------------------------


async def test_a_limit_costs_the_same_however_many_lanes_there_are(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    raw.sadd("{jobs}:lanes", *(f"normal:kind=junk-{n}" for n in range(300)))
    limits = Limits(max_concurrency=1)
    await queue.enqueue_many([Task(kind="few"), Task(kind="few", priority=Priority.HIGH), Task(kind="few")])
    one, two, three = await queue.pop_many(3)
    before = raw.info("stats")["total_net_input_bytes"]
    assert await queue.admit(one, limits)
    assert not await queue.admit(two, limits)
    assert not await queue.admit(three, limits)
    await done(queue, [one])
    await queue.give_back_permit(one, limits)
    assert raw.info("stats")["total_net_input_bytes"] - before < 20_000
    [again] = await queue.pop_many(1, timeout=DEADLINE_S)
    assert await queue.admit(again, limits)


async def test_a_permit_of_a_lane_that_is_gone_is_free(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    limits = Limits(max_concurrency=1)
    await queue.enqueue(Task(kind="few"))
    [task] = await queue.pop_many(1)
    raw.hset("{jobs}:permits:few", "of-old", "normal:requires=gpu 1-1")
    assert await queue.admit(task, limits)


async def test_kinds_beyond_the_first_ones_are_counted_together(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    await queue.enqueue(Task(kind="render"))
    await queue.enqueue_many([Task(kind=f"kind {n}") for n in range(2_100)])
    [task] = await queue.pop_many(1)
    await done(queue, [task])
    await done(queue, await queue.pop_many(1_000))
    assert raw.hlen("{jobs}:counts") < 3_100
    gauges = await queue.gauges()
    assert (gauges.added["render"], gauges.acked["render"]) == (1, 1)
    assert gauges.added["other"] > 50
    assert sum(gauges.added.values()) == 2_101
    assert sum(gauges.open_by_kind.values()) == 1_100


async def test_a_burst_passes_over_what_others_must_do(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    handlers, seen = Handlers(), []

    @handlers.task("render")
    async def render(task: Task) -> None:
        seen.append(task.id)

    for n in range(200):
        raw.xadd("jobs.tasks", {"data": f'{{"kind": "junk {n % 7}", "id": "junk-{n}"}}' if n % 2 else "junk"})
    await queue.enqueue(Task(kind="render", id="wanted"))
    report = await quick(queue, handlers, burst=True, concurrency=2).run()
    assert (report.reason, seen) == ("burst", ["wanted"])


async def test_no_script_hands_out_moves_or_promotes_more_than_a_few_large_tasks(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    def scripts() -> int:
        return calls(raw, "evalsha") + calls(raw, "eval")

    payload = {"text": "x" * 300_000}
    first = [Task(kind="mail", payload=payload) for _ in range(20)]
    await queue.enqueue_many(first)
    found = await queue.pop_many(20)
    assert len(found) <= 3
    while len(found) < 20:
        found += await queue.pop_many(20)
    assert [task.id for task in found] == [task.id for task in first]
    tasks = [Task(kind="render", payload=payload) for _ in range(20)]
    await queue.enqueue_many(tasks)
    before = scripts()
    assert await queue.pop_many(20, kinds={"mail"}, block=False) == []
    assert raw.xlen("jobs.tasks.normal:kind=render") == 20
    assert scripts() - before >= 20 / 2
    later = [Task(kind="mail", payload=payload) for _ in range(20)]
    await queue.enqueue_many(later, delay=0.001)
    before, found = scripts(), []
    while len(found) < 20:
        found += await queue.pop_many(20, kinds={"mail"})
    assert {task.id for task in found} == {task.id for task in later}
    assert scripts() - before >= 20 / 2


async def test_no_script_adds_or_finishes_more_than_a_few_large_tasks(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    def scripts() -> int:
        return calls(raw, "evalsha") + calls(raw, "eval")

    large, before = {"text": "x" * 300_000}, scripts()
    tasks = [Task(kind="render", payload=large) for _ in range(20)]
    assert await queue.enqueue_many(tasks) == [task.id for task in tasks]
    assert scripts() - before >= 20 / 8
    found = list[Task]()
    while len(found) < 20:
        found += await queue.pop_many(20)
    before = scripts()
    results = [Result(task_id=task.id, kind=task.kind, data=large) for task in found]
    assert await queue.finish_many(results) == [True] * 20
    assert scripts() - before >= 20 / 8


async def test_results_that_an_earlier_call_has_stored_are_not_refused_when_a_later_one_fails(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, finishes = StreamClient.run, list[str]()

    async def fails_once(client: StreamClient, name: str, *args: Any) -> Any:
        finishes.extend([name] if name == "tasks/finish" else [])
        if len(finishes) == 2:
            raise OutOfMemory("in the middle")
        return await run(client, name, *args)

    large = {"text": "x" * 900_000}
    await queue.enqueue_many([Task(kind="render", payload=large) for _ in range(6)])
    found = list[Task]()
    while len(found) < 6:
        found += await queue.pop_many(6)
    results = [Result(task_id=task.id, kind=task.kind, data=large) for task in found]
    monkeypatch.setattr(StreamClient, "run", fails_once)
    with pytest.raises(OutOfMemory):
        await queue.finish_many(results)
    assert raw.hlen("{jobs}:done") == 2
    assert await queue.finish_many(results) == [True] * 6
