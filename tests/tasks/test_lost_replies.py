"""A reply gets lost after the server did what it was told: nothing is done twice, nothing is lost, no attempt is burnt."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import redis

from penstock.errors import ConnectionLost
from penstock.events import EventName
from penstock.redis.scripts import script
from penstock.task import Result, Task
from penstock.tasks import Handlers, Limits, Rate, RedisTaskQueue, Retry, Worker
from penstock.testing import FaultProxy
from penstock.testing.task_queue_contract import in_first_run
from tests.helpers.aio import DEADLINE_S, Event, eventually, is_done, join, start, wait_for
from tests.tasks.stage import quick, running

pytestmark = [pytest.mark.usefixtures("default_server")]
SCRIPTS = [
    "tasks/enqueue",
    "tasks/take",
    "tasks/finish",
    "tasks/release",
    "tasks/result",
    "tasks/admit",
    "tasks/redrive",
    "streams/take_due",
    "streams/begin",
]
TRIES = 3  # of whatever may be sent again


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
    lose(fault_proxy, "tasks/enqueue")
    assert await lossy.enqueue_many(tasks) == [task.id for task in tasks]
    assert raw.xlen("jobs.tasks") == await lossy.pending_count() == 5


async def test_tasks_that_were_handed_out_to_nobody_are_taken_up_without_burning_an_attempt(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    tasks = [Task(kind="render") for _ in range(5)]
    await lossy.enqueue_many(tasks)
    lose(fault_proxy, "tasks/take")
    found = await lossy.pop_many(10)
    assert [(task.id, task.attempts) for task in found] == [(task.id, 1) for task in tasks]


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
    assert found == in_first_run(task)


@pytest.mark.parametrize("name", ["streams/take_due", "streams/begin"])
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
    assert (again.id, again.attempts) == (task.id, 2)


async def test_a_run_that_may_have_been_recorded_and_did_not_begin_costs_no_attempt(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    await lossy.enqueue(Task(kind="render"))
    [task] = await lossy.pop_many(1)
    await lossy.nack(task.id)
    [again] = await lossy.pop_many(1, begin=False)
    for _ in range(TRIES):
        lose(fault_proxy, "streams/begin")
    with pytest.raises(ConnectionLost):
        await lossy.begin(again)
    lossy.abandon(again.id, has_run=False)
    [found] = await lossy.pop_many(1, begin=False, timeout=DEADLINE_S)
    assert found == again
    assert await lossy.begin(found)


async def test_a_result_that_was_stored_is_known_to_be(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    await lossy.enqueue_many([Task(kind="render") for _ in range(5)])
    found = await lossy.pop_many(5)
    lose(fault_proxy, "tasks/finish")
    assert await lossy.finish_many([done(task) for task in found]) == [True] * 5
    assert raw.hlen("{jobs}:done") == 5
    assert raw.xlen("jobs.results") == 1
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0


async def test_a_result_that_was_pushed_is_known_to_be(lossy: RedisTaskQueue, fault_proxy: FaultProxy) -> None:
    lose(fault_proxy, "tasks/result")
    assert await lossy.push_result(Result(task_id="a", kind="render", data=1))
    assert not await lossy.push_result(Result(task_id="a", kind="render", data=2))


@pytest.mark.parametrize("what", ["ack", "dead_letter"])
async def test_a_task_that_was_settled_is_known_to_be(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, what: str
) -> None:
    await lossy.enqueue(Task(kind="render"))
    task = await lossy.pop()
    assert task is not None
    lose(fault_proxy, "tasks/release")
    assert await (lossy.ack(task.id) if what == "ack" else lossy.dead_letter(task.id))
    assert await lossy.pending_count() == 0


async def test_a_task_that_was_given_back_is_given_back_once(lossy: RedisTaskQueue, fault_proxy: FaultProxy) -> None:
    await lossy.enqueue(Task(kind="render"))
    task = await lossy.pop()
    assert task is not None
    lose(fault_proxy, "tasks/release")
    assert await lossy.nack(task.id)
    again = await lossy.pop()
    assert again is not None
    assert again.attempts == 2


async def test_a_task_that_was_handed_back_keeps_the_attempts_that_it_had(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    await lossy.enqueue(Task(kind="render"))
    for attempts in (1, 2, 3):
        [task] = await lossy.pop_many(1)
        assert task.attempts == attempts
        assert await lossy.nack(task.id, max_retry=9)
    [task] = await lossy.pop_many(1)
    lose(fault_proxy, "tasks/release")
    assert await lossy.nack(task.id, counts=False)
    assert await lossy.pop_many(1) == [task]


async def test_a_task_that_was_given_up_after_its_last_run_is_known_to_be(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    await lossy.enqueue(Task(kind="render"))
    [task] = await lossy.pop_many(1)
    lose(fault_proxy, "tasks/release")
    assert await lossy.nack(task.id, max_retry=0)
    assert await lossy.dead.count() == 1


async def test_a_task_that_was_put_aside_by_its_limits_does_not_begin(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    limits = Limits(rate=Rate(1, 3_600))
    await lossy.enqueue_many([Task(kind="render"), Task(kind="render")])
    first, second = await lossy.pop_many(2)
    assert await lossy.admit(first, limits)
    lose(fault_proxy, "tasks/admit")
    assert not await lossy.admit(second, limits)
    assert raw.zcard(lossy.keys.tasks().retries("jobs")) == 1, "it waits, and nobody else may begin with it meanwhile"


async def test_a_dead_task_that_was_put_back_is_known_to_be(lossy: RedisTaskQueue, fault_proxy: FaultProxy) -> None:
    await lossy.enqueue(Task(kind="render"))
    [task] = await lossy.pop_many(1)
    await lossy.dead_letter(task.id)
    lose(fault_proxy, "tasks/redrive")
    assert await lossy.dead.redrive() == [task.id]
    assert await lossy.dead.redrive() == []


# --- what no try brings to the server ---------------------------------------------------------------


def ignore_for_a_while(proxy: FaultProxy, name: str) -> None:
    """Lets every try of the next call of a script get lost on its way to the server."""
    for _ in range(TRIES):
        proxy.drop_request("EVALSHA", 1, containing=script(name).sha.encode())


async def know_lanes(queue: RedisTaskQueue) -> None:
    """Lets a queue know its default lane and the one of `gpu`."""
    await queue.enqueue_many([Task(kind="plain"), Task(kind="first", requires={"gpu"})])
    known: list[Task] = []
    while len(known) < 2:
        known += await queue.pop_many(2, timeout=0.1)
    for task in known:
        await queue.ack(task.id)


async def lose_in_blocked_pop(queue: RedisTaskQueue, other: RedisTaskQueue, proxy: FaultProxy, task: Task) -> None:
    """Lets a pop wait for tasks that need `gpu`, and lose the reply that brings this one."""
    before = proxy.count("XREADGROUP")
    lost = proxy.drop_reply("XREADGROUP", 1, containing=b"gpu")
    popping = start(queue.pop_many, 1, timeout=DEADLINE_S, provides={"gpu"})
    await eventually(lambda: proxy.count("XREADGROUP") > before)
    await other.enqueue(task)
    with pytest.raises(ConnectionLost):
        await join(popping)
    assert lost.has_happened


async def test_what_a_pop_left_behind_is_not_forgotten_by_one_that_reads_other_lanes(
    lossy: RedisTaskQueue, other: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    task = Task(kind="render", requires=frozenset({"gpu"}))
    await know_lanes(lossy)
    await lose_in_blocked_pop(lossy, other, fault_proxy, task)
    assert await lossy.pop_many(1, block=False, provides=()) == []
    assert await lossy.pop_many(1, timeout=0.1, provides={"gpu"}) == [in_first_run(task)]


async def test_what_a_pop_left_behind_is_not_forgotten_when_another_lane_loses_its_group(
    lossy: RedisTaskQueue, other: RedisTaskQueue, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    task = Task(kind="render", requires=frozenset({"gpu"}))
    await know_lanes(lossy)
    before = fault_proxy.count("XREADGROUP")
    waiting = start(lossy.pop_many, 1, timeout=0.9, provides=())  # while it reads nobody looks what was left behind
    await eventually(lambda: fault_proxy.count("XREADGROUP") > before)
    await lose_in_blocked_pop(lossy, other, fault_proxy, task)
    raw.xgroup_destroy("jobs.tasks", "jobs")
    await join(waiting)
    assert await lossy.pop_many(1, timeout=0.1, provides={"gpu"}) == [in_first_run(task)]


async def test_what_a_pop_left_behind_is_taken_up_though_several_pops_wait_all_the_time(
    lossy: RedisTaskQueue, other: RedisTaskQueue, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, next_one = Task(kind="render"), Task(kind="render")
    reader = lossy._reader
    reader.heartbeat_s = 2 * DEADLINE_S  # so that no read ends before the test does
    monkeypatch.setattr(f"{type(reader).__module__}.REFRESH_EVERY_S", 2 * DEADLINE_S)
    assert await lossy.pop(timeout=0.01) is None
    before = fault_proxy.count("XREADGROUP")
    lost = fault_proxy.drop_reply("XREADGROUP", 1)
    losing = start(lossy.pop_many, 1, timeout=DEADLINE_S)
    await eventually(lambda: fault_proxy.count("XREADGROUP") > before)
    waiting = start(lossy.pop_many, 1, timeout=DEADLINE_S)
    await eventually(lambda: fault_proxy.count("XREADGROUP") > before + 1)
    await other.enqueue(left)  # the first that waits gets it
    with pytest.raises(ConnectionLost):
        await join(losing)
    assert lost.has_happened
    again = start(lossy.pop_many, 1, timeout=DEADLINE_S)
    await eventually(lambda: is_done(again) or is_done(waiting))
    await other.enqueue(next_one)
    found = [*await join(again), *await join(waiting)]
    assert sorted(task.id for task in found) == sorted([left.id, next_one.id])
    assert {task.attempts for task in found} == {1}


def short(queue: RedisTaskQueue, handlers: Handlers) -> Worker:
    return quick(queue, handlers, idle_ms=500)


async def test_a_failed_task_that_cannot_be_given_back_is_an_orphan_though_its_worker_lives(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    handlers, runs = Handlers(), list[int]()

    @handlers.task("render", retry=Retry(initial_delay_ms=0))
    async def render(task: Task) -> None:
        runs.append(task.attempts)
        if len(runs) == 1:
            ignore_for_a_while(fault_proxy, "tasks/release")
            raise ValueError("once")

    task = Task(kind="render")
    await lossy.enqueue(task)
    async with running(short(lossy, handlers)):
        assert await lossy.wait_for_result(task.id, DEADLINE_S) is not None
    assert len(runs) >= 2, "more, if the whole worker stood still for a lease"


async def test_a_task_that_ran_and_could_not_be_given_back_is_not_taken_up_as_if_it_had_not(
    queue: RedisTaskQueue, other: RedisTaskQueue
) -> None:
    await queue.enqueue_many([Task(kind="render"), Task(kind="render")])
    ran, waited = await queue.pop_many(2)
    queue.abandon(ran.id, has_run=True)
    queue.abandon(waited.id, has_run=False)
    assert await queue.pop_many(2) == [in_first_run(waited)]
    assert await queue.ack(waited.id)
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 1
    [again] = await queue.pop_many(2)
    assert (again.id, again.attempts) == (ran.id, 2)


async def test_a_task_whose_handler_hangs_is_not_taken_up_by_its_own_worker_before_its_lease_ends(
    queue: RedisTaskQueue, other: RedisTaskQueue
) -> None:
    await queue.enqueue_many([Task(kind="render"), Task(kind="render")])
    hanging, waited = await queue.pop_many(2)
    with queue.renewing(1, lambda: [hanging]):
        await eventually(lambda: not queue.holds(hanging))
    queue.abandon(waited.id, has_run=False)  # so that the next pop looks for what was left behind
    assert await queue.pop_many(2) == [in_first_run(waited)]
    assert await queue.ack(waited.id)
    assert await eventually(lambda: other.requeue_orphans(1, 10)) == 1


async def test_a_task_that_could_not_be_given_back_is_told_to_be_lost_when_another_has_it(
    fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    raw.script_load(script("tasks/release").source)
    lost: list[object] = []
    async with RedisTaskQueue(fault_proxy.url, "jobs", on_event=lambda event: lost.append(event.name)) as queue:
        await queue.enqueue(Task(kind="render"))
        [task] = await queue.pop_many(1)
        ignore_for_a_while(fault_proxy, "tasks/release")
        with pytest.raises(ConnectionLost):
            await queue.nack(task.id)
        [(entry_id, _)] = raw.xrange("jobs.tasks")
        raw.xclaim("jobs.tasks", "jobs", "thief", 0, [entry_id], justid=True)
        with queue.renewing(10):
            await eventually(lambda: lost == [EventName.LEASE_LOST])


async def test_a_task_that_could_not_ask_for_its_permit_asks_again(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy
) -> None:
    handlers = Handlers()

    @handlers.task("render", max_concurrency=1)
    async def render(task: Task) -> int:
        return task.attempts

    task = Task(kind="render")
    await lossy.enqueue(task)
    ignore_for_a_while(fault_proxy, "tasks/admit")
    async with running(quick(lossy, handlers)):
        result = await lossy.wait_for_result(task.id, DEADLINE_S)
    assert result is not None
    assert result.data == 1, "it never ran before"


async def test_what_one_pop_is_looking_into_is_not_taken_up_by_another(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, may_go_on, call = Event(), Event(), queue.client.call

    async def slow_call(key: str, *command: Any, **options: Any) -> Any:
        if command[0] == "HMGET":
            looks.set()
            await wait_for(may_go_on)
        return await call(key, *command, **options)

    left, foreign = Task(kind="render"), Task(kind="render")
    await queue.enqueue(left)
    await queue.pop()
    raw.xadd("jobs.tasks", {"data": msgspec.msgpack.encode(foreign)})  # so it is compared with the index
    monkeypatch.setattr(queue.client, "call", slow_call)
    popping = start(queue.pop_many, 10, block=False)
    await wait_for(looks)
    queue.abandon(left.id, has_run=False)  # from now on a pop that may takes up what nobody holds
    assert await queue.pop_many(10, block=False) == []
    may_go_on.set()
    assert await join(popping) == [in_first_run(foreign)]
    assert await queue.pop_many(10, block=False) == [in_first_run(left)]


async def test_chores_are_done_though_the_reply_of_their_election_got_lost(
    lossy: RedisTaskQueue, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    await lossy.enqueue(Task(kind="render"))
    [task] = await lossy.pop_many(1)
    assert await lossy.finish_many([done(task)]) == [True]
    assert raw.xlen("jobs.tasks") == 1
    fault_proxy.drop_reply("SET", 1)
    await lossy.requeue_orphans()
    assert raw.xlen("jobs.tasks") == 0


async def test_a_moved_task_that_never_ran_keeps_its_attempts(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    raw.xadd("jobs.tasks", {"data": msgspec.msgpack.encode(Task(kind="render")), "attempts": 2})
    [task] = await queue.pop_many(1)
    assert await queue.nack(task.id, max_retry=9)
    [again] = await queue.pop_many(1)
    queue.abandon(task.id, has_run=False)
    assert await queue.pop_many(1) == [again]
