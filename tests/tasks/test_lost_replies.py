"""A reply gets lost after the server did what it was told: nothing is done twice, nothing is lost, no attempt is burnt."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import redis

from penstock.errors import ConnectionLost
from penstock.redis.scripts import script
from penstock.task import Result, Task
from penstock.tasks import RedisTaskQueue
from penstock.testing import FaultProxy

pytestmark = [pytest.mark.usefixtures("default_server")]
SCRIPTS = ["task_enqueue", "task_take", "task_finish", "task_release", "task_result", "take_due", "begin"]


@pytest.fixture
async def lossy(fault_proxy: FaultProxy, raw: redis.Redis) -> AsyncIterator[RedisTaskQueue]:
    for name in SCRIPTS:
        raw.script_load(script(name).source)
    async with RedisTaskQueue(fault_proxy.url, "jobs") as queue:
        yield queue


def lose(proxy: FaultProxy, name: str) -> None:
    """Lets the reply to the next call of a script get lost."""
    proxy.drop_reply("EVALSHA", 1, containing=script(name).sha.encode())


def done(task: Task) -> Result:
    return Result(task_id=task.id, kind=task.kind, data=task.attempts)


async def test_a_task_that_was_added_is_not_added_again(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    tasks = [Task(kind="render") for _ in range(5)]
    lose(fault_proxy, "task_enqueue")
    assert await lossy.enqueue_many(tasks) == [task.id for task in tasks]
    assert raw.xlen("jobs.tasks") == await lossy.pending_count() == 5


async def test_tasks_that_were_handed_out_to_nobody_are_taken_up_without_burning_an_attempt(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    tasks = [Task(kind="render") for _ in range(5)]
    await lossy.enqueue_many(tasks)
    lose(fault_proxy, "task_take")
    found = await lossy.pop_many(10)
    assert [(task.id, task.attempts) for task in found] == [(task.id, 0) for task in tasks]


async def test_a_blocking_read_whose_reply_got_lost_loses_no_task(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    assert await lossy.pop(timeout=0.01) is None
    task = Task(kind="render")
    fault_proxy.drop_reply("XREADGROUP", 1)
    found = None
    for _ in range(10):
        with contextlib.suppress(ConnectionLost):  # it is told, and the task is not lost
            found = await lossy.pop(timeout=0.1)
        if found is not None:
            break
        await lossy.enqueue(task)
    assert found == task


@pytest.mark.parametrize("name", ["take_due", "begin"])
async def test_a_retry_that_was_handed_out_to_nobody_is_taken_up(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, name: str
) -> None:
    await lossy.enqueue(Task(kind="render"))
    task = await lossy.pop()
    assert task is not None
    await lossy.nack(task.id)
    lose(fault_proxy, name)
    again = await lossy.pop(timeout=30)
    assert again is not None
    assert (again.id, again.attempts) == (task.id, 1)


async def test_a_result_that_was_stored_is_known_to_be(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    await lossy.enqueue_many([Task(kind="render") for _ in range(5)])
    found = await lossy.pop_many(5)
    lose(fault_proxy, "task_finish")
    assert await lossy.finish_many([done(task) for task in found]) == [True] * 5
    assert raw.hlen("{jobs}:done") == 5
    assert raw.xlen("jobs.results") == 1
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0


async def test_a_result_that_was_pushed_is_known_to_be(lossy: RedisTaskQueue, fault_proxy: FaultProxy) -> None:
    lose(fault_proxy, "task_result")
    assert await lossy.push_result(Result(task_id="a", kind="render", data=1))
    assert not await lossy.push_result(Result(task_id="a", kind="render", data=2))


@pytest.mark.parametrize("what", ["ack", "bury"])
async def test_a_task_that_was_settled_is_known_to_be(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, what: str
) -> None:
    await lossy.enqueue(Task(kind="render"))
    task = await lossy.pop()
    assert task is not None
    lose(fault_proxy, "task_release")
    assert await (lossy.ack(task.id) if what == "ack" else lossy.bury(task.id))
    assert await lossy.pending_count() == 0


async def test_a_task_that_was_given_back_is_given_back_once(lossy: RedisTaskQueue, fault_proxy: FaultProxy) -> None:
    await lossy.enqueue(Task(kind="render"))
    task = await lossy.pop()
    assert task is not None
    lose(fault_proxy, "task_release")
    assert await lossy.nack(task.id)
    again = await lossy.pop()
    assert again is not None
    assert again.attempts == 1
