"""A task is in flight, and its lease is renewed, as soon as it has arrived and until the server has settled it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis

from penstock.events import Event as Occurrence
from penstock.task import Result, Task
from penstock.tasks import RedisTaskQueue
from penstock.tasks.blocking_reads import BlockingReads
from penstock.tasks.lane_store import LaneStore
from penstock.testing.task_queue_contract import in_first_run
from tests.helpers import threads
from tests.helpers.ageing import Ageing
from tests.helpers.aio import pause

pytestmark = [pytest.mark.usefixtures("default_server")]
HEARTBEAT_MS = 50


async def test_a_task_that_arrived_is_renewed_before_it_is_known_to_be_no_copy(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, call = Ageing(raw, "jobs.tasks", "jobs"), queue.client.call

    async def slow_call(key: str, *command: Any, **options: Any) -> Any:
        if command[0] == "HMGET":
            lease.age()
            threads.eventually(lease.is_renewed)  # as if a handler blocked the event loop
        return await call(key, *command, **options)

    task = Task(kind="render")
    raw.xadd("jobs.tasks", {"data": msgspec.msgpack.encode(task)})  # so it is compared with the index
    monkeypatch.setattr(queue.client, "call", slow_call)
    with queue.renewing(HEARTBEAT_MS):
        assert await queue.pop() == in_first_run(task)


async def test_a_task_that_comes_again_is_renewed_before_its_run_is_recorded(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, run = Ageing(raw, "jobs.tasks", "jobs"), queue.client.run

    async def slow_run(name: str, *args: Any) -> Any:
        if name == "streams/begin":
            lease.age()
            threads.eventually(lease.is_renewed)
        return await run(name, *args)

    await queue.enqueue(Task(kind="render"))
    task = await queue.pop()
    assert task is not None
    await queue.nack(task.id)
    monkeypatch.setattr(queue.client, "run", slow_run)
    with queue.renewing(HEARTBEAT_MS):
        again = await queue.pop()
    assert again is not None
    assert again.attempts == 2


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_a_reply_that_is_seen_too_late_hands_out_only_what_is_still_ours(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_waited_for: bool, is_lost: bool
) -> None:
    run, read, late = queue.client.run, BlockingReads.read, []

    async def see_late() -> None:
        if raw.xpending("jobs.tasks", "jobs")["pending"] and not late:
            late.append(True)
            if is_lost:
                [(entry_id, _)] = raw.xrange("jobs.tasks")
                raw.xclaim("jobs.tasks", "jobs", "thief", 0, [entry_id], justid=True)
            await pause(0.3)  # longer than the heartbeat, which cannot know what the reply brings

    async def run_late(name: str, *args: Any) -> Any:
        reply = await run(name, *args)
        if name == "tasks/take":
            await see_late()
        return reply

    async def read_late(reads: BlockingReads, *args: Any) -> Any:
        await queue.enqueue(task)
        reply = await read(reads, *args)
        await see_late()
        return reply

    task = Task(kind="render")
    if is_waited_for:
        monkeypatch.setattr(BlockingReads, "read", read_late)
    else:
        await queue.enqueue(task)
        monkeypatch.setattr(queue.client, "run", run_late)
    with queue.renewing(HEARTBEAT_MS):
        found = await queue.pop_many(1, block=is_waited_for)
    assert late
    assert found == ([] if is_lost else [in_first_run(task)])


async def test_replies_that_are_seen_too_late_take_no_more_tasks_than_were_asked_for(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queue.client.run

    async def run_late(name: str, *args: Any) -> Any:
        reply = await run(name, *args)
        if name == "tasks/take":
            await pause(0.1)  # stands for a slow network: many renewals fall into it
        return reply

    tasks = [Task(kind="render") for _ in range(10)]
    await queue.enqueue_many(tasks)
    monkeypatch.setattr(queue.client, "run", run_late)
    with queue.renewing(1):
        for start in (0, 5):
            found = await queue.pop_many(5, block=False)
            assert found == [in_first_run(task) for task in tasks[start : start + 5]]
            assert raw.xpending("jobs.tasks", "jobs")["pending"] == start + 5


async def test_a_task_that_the_server_has_settled_is_not_told_to_be_lost(
    redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_now, events = LaneStore.finish, list[Occurrence]()

    async def answer_late(store: LaneStore, *args: Any) -> Any:
        answers = await finish_now(store, *args)
        before = renewals()
        threads.eventually(lambda: renewals() > before + 1)  # as if the next handler blocked the event loop
        return answers

    def renewals() -> int:
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])

    monkeypatch.setattr(LaneStore, "finish", answer_late)
    async with RedisTaskQueue(redis_url, "jobs", on_event=events.append) as queue:
        await queue.enqueue(Task(kind="render"))
        with queue.renewing(HEARTBEAT_MS):
            [task] = await queue.pop_many(1)
            assert await queue.finish_many([Result(task_id=task.id, kind=task.kind)]) == [True]
    assert [event.name for event in events] == []


async def test_tasks_whose_entries_have_one_id_in_two_lanes_keep_each_its_attempts(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    raw.sadd(queue.keys.lanes, "normal", "high")
    for name, lane, runs in (("once", "", 1), ("often", ".high", 5)):
        keys = queue.keys.tasks(lane)
        raw.xadd(keys.stream, {"data": msgspec.msgpack.encode(Task(kind="render", id=name))}, id="1-0")
        raw.xgroup_create(keys.stream, "jobs", "0")
        raw.xreadgroup("jobs", "dead", {keys.stream: ">"})
        raw.hset(keys.attempts("jobs"), "1-0", runs)
        raw.zadd(keys.retries("jobs"), {"1-0": 0})
    found = {task.id: task.attempts for task in await queue.pop_many(2)}
    for name in found:
        queue.abandon(name, has_run=False)
    again = {task.id: task.attempts for task in await queue.pop_many(2)}
    assert found == again == {"once": 2, "often": 6}
