"""The dead letters of a task queue stay within the limits of the client, and nothing of the tasks that go stays behind."""

from __future__ import annotations

import itertools

import pytest
import redis

from penstock.tasks import RedisTaskQueue, StubQueue, Task, TaskQueue

pytestmark = pytest.mark.usefixtures("default_server")


async def give_up(queue: TaskQueue, count: int) -> list[str]:
    ids = []
    for number in range(count):
        task = Task(kind="print", payload={"page": number}, unique=f"page {number}")
        ids.append(await queue.enqueue(task))
        assert await queue.pop(timeout=0) is not None
        assert await queue.dead_letter(task.id, text="no such page")
    return ids


async def test_the_newest_dead_letters_are_kept(redis_url: str) -> None:
    async with RedisTaskQueue(redis_url, "jobs", dead_letter_limits={"max_count": 3}) as queue:
        ids = await give_up(queue, 8)
        assert [letter.task_id async for letter in queue.dead.iterate()] == ids[5:]
        gauges = await queue.gauges()
        assert (gauges.dead_letters, gauges.dead_trimmed, gauges.dead) == (3, 5, {"print": 8})


async def test_a_task_whose_dead_letter_went_leaves_its_error_alone_behind(redis_url: str, raw: redis.Redis) -> None:
    async with RedisTaskQueue(redis_url, "jobs", dead_letter_limits={"max_count": 1}) as queue:
        first, second = await give_up(queue, 2)
        gone = await queue.dead.get(first)
        assert gone is None
        result = await queue.get_result(first)
        assert result is not None
        assert (result.status, result.error) == ("error", "no such page")
        assert await queue.pending_count() == 0
        assert not raw.hlen("{jobs}:unique")
        again = Task(kind="print", payload={"page": 0}, unique="page 0")
        assert await queue.enqueue(again) == again.id, "its unique text is free"
        assert await queue.dead.get(second) is not None


async def test_a_record_that_went_cannot_be_put_back(redis_url: str) -> None:
    async with RedisTaskQueue(redis_url, "jobs", dead_letter_limits={"max_count": 1}) as queue:
        await give_up(queue, 1)
        [letter] = [letter async for letter in queue.dead.iterate()]
        await give_up(queue, 1)
        assert await queue.dead.put_back(letter) == "gone"


async def test_tasks_of_dead_workers_are_within_the_limits(redis_url: str) -> None:
    options = {"max_retry": 0, "dead_letter_limits": {"max_count": 3}}
    async with RedisTaskQueue(redis_url, "jobs", **options) as queue:
        async with RedisTaskQueue(redis_url, "jobs") as silent:
            await queue.enqueue_many([Task(kind="print") for _ in range(8)])
            for _ in range(8):
                await silent.pop(timeout=0)
        await queue.requeue_orphans(0)
        assert await queue.dead.count() == 3
        assert (await queue.gauges()).dead_trimmed == 5


async def test_what_is_too_old_goes_though_no_task_dies(redis_url: str, raw: redis.Redis) -> None:
    for sequence in range(1, 11):
        raw.xadd("jobs.dead", {"data": "old"}, id=f"1000-{sequence}")  # of 1970
    async with RedisTaskQueue(redis_url, "jobs") as queue:
        await queue.trim()
        assert await queue.dead.count() == 0


@pytest.mark.parametrize(
    ("limits", "kept"), [({"max_count": 3}, 3), ({"max_age_s": 4.5}, 5), ({"max_bytes": 1}, 1), ("none", 8)]
)
async def test_a_queue_in_memory_keeps_the_newest_too(limits: object, kept: int) -> None:
    moments = itertools.count(1_000)
    queue = StubQueue(dead_letter_limits=limits, now=lambda: moment)  # type: ignore[arg-type]
    ids = list[str]()
    for _ in range(8):
        moment = next(moments)
        ids += await give_up(queue, 1)
    assert [letter.task_id for letter in queue.dead] == ids[8 - kept :]
    assert len({letter.id for letter in queue.dead}) == kept
