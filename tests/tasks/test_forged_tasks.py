"""An entry that carries the id of another task never sets the result of that task."""

from __future__ import annotations

import pytest
import redis

from penstock.task import Result, Task, encode
from penstock.tasks import Handlers, RedisTaskQueue, Retry
from tests.helpers.aio import DEADLINE_S, eventually
from tests.tasks.stage import MemoryBackend, quick, running

pytestmark = [pytest.mark.usefixtures("default_server")]


def forge(raw: redis.Redis, task: Task, payload: str = "forged") -> str:
    """Adds an entry as enqueue() would, with the id of a task and another payload; returns the id of the entry."""
    body = encode(Task(kind=task.kind, id=task.id, payload={"value": payload}))
    return str(raw.xadd("jobs.tasks", {"data": body, "task_id": task.id, "kind": task.kind}).decode())


def genuine() -> Task:
    return Task(kind="render", payload={"value": "genuine"})


async def finish(queue: RedisTaskQueue, task: Task) -> bool:
    """Stores the payload of a task as its result."""
    [answer] = await queue.finish_many([Result(task_id=task.id, kind=task.kind, data=task.payload["value"])])
    return answer


async def result_of(queue: RedisTaskQueue, task: Task) -> object:
    result = await queue.wait_for_result(task.id, DEADLINE_S)
    assert result is not None
    return result.data


async def test_a_forged_entry_that_is_taken_is_a_dead_letter(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = genuine()
    await queue.enqueue(task)
    [held] = await queue.pop_many(1)
    forge(raw, task)
    assert await other.pop_many(1, block=False) == []
    assert [letter.reason async for letter in queue.dead.iterate()] == ["invalid"]
    assert await finish(queue, held)
    assert await result_of(queue, task) == "genuine"


async def test_a_forged_entry_does_not_speak_for_a_scheduled_task(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    task = genuine()
    await queue.enqueue(task, delay=3600)
    forge(raw, task)
    assert await queue.pop_many(1, block=False) == []
    assert await queue.wait_for_result(task.id, 0) is None
    assert await queue.pending_count() == 1


async def test_the_result_of_an_entry_whose_task_was_enqueued_while_it_ran_is_not_stored(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = genuine()
    forge(raw, task)
    [forged] = await queue.pop_many(1)
    await other.enqueue(task)
    [held] = await other.pop_many(1)
    assert not await finish(queue, forged)
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 1
    assert await finish(other, held)
    assert await result_of(queue, task) == "genuine"
    assert await queue.pending_count() == 0


async def test_of_two_entries_in_one_step_that_of_the_open_task_is_stored(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = genuine()
    forge(raw, task)
    await queue.enqueue(task)
    [held] = await queue.pop_many(2)
    assert held.payload == task.payload
    assert await finish(queue, held)
    assert await result_of(queue, task) == "genuine"
    assert [letter.reason async for letter in queue.dead.iterate()] == ["invalid"]
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0


async def test_of_two_entries_that_are_read_while_waiting_that_of_the_open_task_runs(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = genuine()
    await queue.pop_many(2, block=False)  # creates the lanes
    forged = forge(raw, task)
    await queue.enqueue(task)

    async def nothing(*_: object) -> bool:
        return False

    monkeypatch.setattr(queue._reader, "_take_pass", nothing)  # as if both came while it waited: no script reads them
    [held] = await queue.pop_many(2, timeout=DEADLINE_S)
    assert held.payload == task.payload
    assert queue.holds(held)
    assert await finish(queue, held)
    assert [letter.source async for letter in queue.dead.iterate()] == [f"jobs.tasks/{forged}"]
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0


@pytest.mark.parametrize("fails", [False, True])
async def test_the_result_of_a_forged_entry_is_not_saved_in_a_back_end(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis, fails: bool
) -> None:
    handlers, backend, task = Handlers(), MemoryBackend(), genuine()

    @handlers.task("render", retry=Retry(max_attempts=1))
    async def render(given: Task) -> object:
        if given.payload["value"] == "forged":
            await other.enqueue(task, delay=3600)  # the index names another entry from here on
            if fails:
                raise ValueError("forged")
        return given.payload["value"]

    forge(raw, task)
    worker = quick(queue, handlers, results=backend, save_errors=True)
    async with running(worker):
        await eventually(lambda: worker.report().refused or worker.report().dead)
    assert backend.saved == {}
    assert await queue.wait_for_result(task.id, 0) is None
    assert await queue.pending_count() == 1


async def test_a_task_that_was_moved_tried_again_and_redriven_keeps_its_result(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = genuine()
    await queue.enqueue(task, delay=0.001)
    while await queue.pop_many(1, kinds={"mail"}):  # moves it to the lane of its kind
        pass
    [held] = await other.pop_many(1, kinds={"render"}, timeout=DEADLINE_S)
    await other.nack(held.id)
    [held] = await other.pop_many(1, kinds={"render"}, timeout=DEADLINE_S)
    await other.dead_letter(held.id)
    await queue.dead.redrive()
    [held] = await queue.pop_many(1, timeout=DEADLINE_S)
    assert await finish(queue, held)
    assert await result_of(queue, task) == "genuine"


async def test_a_second_entry_that_is_put_aside_to_run_alone_is_not_held(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task, lane = genuine(), queue.keys.tasks("")
    await queue.pop_many(2, block=False)  # creates the lanes
    await queue.enqueue(task)
    forged = forge(raw, task)
    [(_, rows)] = raw.xreadgroup("jobs", "dead", {"jobs.tasks": ">"})
    raw.zadd(lane.retries("jobs"), {entry_id: 1 for entry_id, _ in rows})
    raw.hset(lane.attempts("jobs"), forged, queue.max_retry + 1)
    raw.sadd(queue.keys.suspects(""), forged)
    [held] = await queue.pop_many(2)
    assert held.payload == task.payload
    assert queue._in_flight.ids_by_stream()[lane] == [rows[0][0].decode()]
