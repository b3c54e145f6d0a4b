"""A task whose entry was trimmed or deleted while it was pending is given up: it does not stay open for ever."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from penstock.events import Event, EventName
from penstock.ids import LAST
from penstock.task import Priority, Result, Status, Task
from penstock.tasks import RedisTaskQueue
from tests.helpers.aio import DEADLINE_S, eventually

pytestmark = [pytest.mark.usefixtures("default_server")]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def queue(redis_url: str, events: list[Event]) -> AsyncIterator[RedisTaskQueue]:
    async with RedisTaskQueue(redis_url, "jobs", on_event=events.append) as queue:
        yield queue


async def check_is_given_up(queue: RedisTaskQueue, task: Task, raw: redis.Redis, entry_id: str) -> None:
    result = await queue.wait_for_result(task.id, DEADLINE_S)
    assert result is not None
    assert (result.status, result.error) == (Status.ERROR, "the entry was trimmed or deleted before the task ended")
    [letter] = [letter async for letter in queue.dead.iterate()]
    assert (letter.reason, letter.task_id, letter.source) == ("missing", task.id, f"jobs.tasks/{entry_id}")
    assert await queue.pending_count() == 0
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0
    assert raw.hlen(queue.keys.unique) == 0
    assert await queue.dead.redrive() == []
    again = Task(kind="render", unique=task.unique)
    assert await queue.enqueue(again) == again.id


def delete_first(raw: redis.Redis) -> str:
    entry_id = raw.xrange("jobs.tasks")[0][0]
    raw.xdel("jobs.tasks", entry_id)
    return str(entry_id.decode())


async def test_a_task_that_vanished_while_it_waited_for_its_retry_is_given_up(
    queue: RedisTaskQueue, raw: redis.Redis, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(kind="render", unique="page 7")
    await queue.enqueue(task)
    await queue.pop()
    await queue.nack(task.id)
    entry_id = delete_first(raw)
    with caplog.at_level(logging.ERROR, "penstock.tasks"):
        assert await queue.pop(block=False) is None
    await check_is_given_up(queue, task, raw, entry_id)
    [record] = caplog.records
    assert (record.getMessage(), record.__dict__["id"]) == (
        f"jobs.tasks/jobs: task {task.id} in entry {entry_id} was dead-lettered (missing) in attempt 0", entry_id,
    )  # fmt: skip
    dead = [event.fields for event in events if event.name is EventName.DEAD_LETTERED]
    assert dead == [{"id": task.id, "reason": "missing", "error": ""}]


async def test_a_task_that_vanished_under_a_worker_that_died_is_given_up(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = Task(kind="render", unique="page 7")
    await other.enqueue(task)
    await other.pop()
    entry_id = delete_first(raw)

    async def is_given_up() -> bool:
        assert await queue.requeue_orphans(1, 10) == 0
        return bool(raw.xlen("jobs.dead"))

    await eventually(is_given_up)
    await check_is_given_up(queue, task, raw, entry_id)


async def test_a_task_that_vanished_after_a_pop_was_cancelled_is_given_up(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = Task(kind="render", unique="page 7")
    await queue.enqueue(task)
    await queue.pop()
    queue.abandon(task.id, has_run=False)
    entry_id = delete_first(raw)
    assert await queue.pop(block=False) is None
    await check_is_given_up(queue, task, raw, entry_id)


@pytest.mark.parametrize("place", [0, 1])
async def test_a_task_that_vanished_before_any_worker_got_it_is_given_up(
    queue: RedisTaskQueue, raw: redis.Redis, place: int, events: list[Event]
) -> None:
    tasks = [Task(kind="render", unique=f"page {n}") for n in range(3)]
    await queue.enqueue_many(tasks)
    raw.xdel("jobs.tasks", raw.xrange("jobs.tasks")[place][0])
    await queue.trim()
    assert [event.fields["id"] for event in events if event.name is EventName.DEAD_LETTERED] == [tasks[place].id]
    result = await queue.wait_for_result(tasks[place].id, 0)
    assert result is not None
    assert result.status is Status.ERROR
    assert await queue.pending_count() == 2
    assert raw.hlen(queue.keys.unique) == 2
    await queue.trim()
    assert raw.xlen("jobs.dead") == 1
    assert len(await queue.pop_many(3)) == 2


async def test_a_task_that_vanished_behind_large_ones_is_given_up(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    tasks = [Task(kind="render", payload={"text": "x" * size}) for size in (600_000, 600_000, 600_000, 1)]
    await queue.enqueue_many(tasks)
    raw.xdel("jobs.tasks", raw.xrevrange("jobs.tasks", count=1)[0][0])

    async def is_given_up() -> bool:
        await queue.trim()
        return await queue.wait_for_result(tasks[-1].id, 0) is not None

    await eventually(is_given_up)
    assert await queue.pending_count() == 3


async def test_tasks_of_a_stream_that_was_deleted_are_given_up_when_it_is_created_again(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    await queue.enqueue(Task(kind="render"))
    await queue.enqueue(Task(kind="render"), delay=3600)
    await queue.pop_many(1)
    raw.delete("jobs.tasks")
    await queue.trim()
    assert await queue.pending_count() == 2
    await queue.trim()
    assert await queue.pending_count() == 1


async def test_a_lane_whose_stream_was_deleted_does_not_stop_the_upkeep_of_others(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    await other.enqueue(Task(kind="render"))
    low = Task(kind="render", priority=Priority.LOW)
    await other.enqueue(low)
    await other.pop_many(2)

    async def are_freed() -> bool:
        raw.delete("jobs.tasks")
        return await queue.requeue_orphans(1, 10) == 1

    assert await queue.requeue_orphans(60_000, 10) == 0  # knows the lanes
    await eventually(are_freed)
    [again] = await queue.pop_many(2)
    assert again.id == low.id
    assert await queue.finish_many([Result(task_id=low.id, kind=low.kind)]) == [True]
    raw.delete("jobs.tasks")
    await queue.trim()
    assert raw.xlen("jobs.tasks.low") == 0


async def test_a_vanished_task_that_a_handler_has_is_left_to_it(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    task = Task(kind="render")
    await queue.enqueue(task)
    await queue.pop()
    delete_first(raw)
    await queue.trim()
    assert await queue.finish_many([Result(task_id=task.id, kind=task.kind, data=1)]) == [True]


async def test_a_vanished_task_that_its_holder_renews_while_it_is_looked_up_is_left_to_it(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, retries, look_up = Task(kind="render"), queue.keys.tasks("").retries("jobs"), queue._undeliverable._tasks_of
    await queue.pop(block=False)  # creates the lanes
    await other.enqueue(task)
    await other.pop()
    entry_id = delete_first(raw)
    raw.zadd(retries, {entry_id: 1})  # as if it had been renewed long ago

    async def slow_look_up(*args: Any) -> dict[str, str]:
        found = await look_up(*args)
        raw.zadd(retries, {entry_id: 10**15})  # as the holder renews it
        return found

    monkeypatch.setattr(queue._undeliverable, "_tasks_of", slow_look_up)
    assert await queue.pop(block=False) is None
    assert raw.zcard(retries) == 1
    assert await other.finish_many([Result(task_id=task.id, kind=task.kind, data=1)]) == [True]
    assert raw.xlen("jobs.dead") == 0


async def test_the_task_of_an_entry_is_found_among_thousands(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    task = Task(kind="render", unique="page 7")
    await queue.enqueue(task)
    await queue.pop()
    await queue.enqueue_many([Task(kind="render") for _ in range(3_000)], delay=3600)
    await queue.nack(task.id)
    delete_first(raw)
    assert await queue.pop(block=False) is None
    assert await queue.wait_for_result(task.id, 0) is not None
    assert await queue.pending_count() == 3_000


async def test_an_entry_of_the_same_id_in_another_lane_is_not_given_up(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    lost, kept = Task(kind="render", id="lost"), Task(kind="render", id="kept")
    await queue.enqueue(lost)
    await queue.pop()
    await queue.nack(lost.id)
    entry_id = delete_first(raw)
    raw.hset(queue.keys.index, kept.id, f"{entry_id} high")
    assert await queue.pop(block=False) is None
    assert raw.hkeys(queue.keys.index) == [b"kept"]


async def test_a_vanished_task_that_no_dead_letters_take_is_not_lost(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    task = Task(kind="render", unique="page 7")
    await queue.enqueue(task)
    await queue.pop()
    await queue.nack(task.id)
    entry_id = delete_first(raw)
    raw.xadd("jobs.dead", {"junk": "1"}, id=LAST)  # nothing can be added behind it
    assert await queue.pop(block=False) is None
    assert await queue.pending_count() == 1
    raw.delete("jobs.dead")

    async def is_given_up() -> bool:
        await queue.requeue_orphans(1, 10)
        return bool(raw.xlen("jobs.dead"))

    await eventually(is_given_up)
    await check_is_given_up(queue, task, raw, entry_id)
