"""A task whose entry was trimmed or deleted while it was pending is given up: it does not stay open for ever."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import redis

from penstock.events import Event, EventName
from penstock.ids import LAST
from penstock.task import Status, Task
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
    assert (result.status, result.error) == (Status.ERROR, "the entry was trimmed or deleted while it was pending")
    [letter] = [letter async for letter in queue.dead.iterate()]
    assert (letter.reason, letter.task_id, letter.source) == ("missing", task.id, f"jobs.tasks/{entry_id}")
    assert await queue.pending_count() == 0
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0
    assert raw.hlen(queue.keys.unique) == 0
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
    queue.let_go(task.id, has_run=False)
    entry_id = delete_first(raw)
    assert await queue.pop(block=False) is None
    await check_is_given_up(queue, task, raw, entry_id)


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
