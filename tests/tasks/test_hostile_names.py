"""Kinds, capabilities, keys and ids of an entry become names of keys and fields: none of them stops a worker."""

from __future__ import annotations

import msgspec
import pytest
import redis

from penstock.errors import ConfigurationError, ServerError
from penstock.task import Priority, Result, Status, Task
from penstock.tasks import Handlers, Limits, Rate, RedisTaskQueue
from tests.helpers.aio import DEADLINE_S
from tests.tasks.stage import quick, running

pytestmark = [pytest.mark.usefixtures("default_server")]

LONG_KINDS = {"letters": "k" * 500, "umlauts": "ä" * 90, "spaces": " k" * 200}


@pytest.mark.parametrize("kind", LONG_KINDS.values(), ids=LONG_KINDS)
async def test_a_task_of_a_long_kind_goes_to_a_lane_and_stops_nobody(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis, kind: str
) -> None:
    task, behind = Task(kind=kind), Task(kind="mail")
    raw.xadd("jobs.tasks", {"data": msgspec.json.encode(task)})
    await queue.enqueue(behind)
    assert [found.id for found in await queue.pop_many(10, kinds={"mail"})] == [behind.id]
    assert await queue.pop_many(10, block=False, kinds={"mail"}) == []
    await queue.trim()
    assert [found.id for found in await other.list_tasks()] == [behind.id]
    [found] = await other.pop_many(10, timeout=DEADLINE_S, kinds={kind, "render"})
    assert (found.id, found.kind) == (task.id, kind)
    assert max(map(len, raw.keys())) < 700  # the name of the stream, and what is around it


async def test_a_task_that_requires_more_than_the_name_of_a_stream_has_room_for_is_refused(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    tags = frozenset(f"{n}" * 64 for n in range(8))
    with pytest.raises(ConfigurationError, match="requires has 519 characters, more than the limit of 200"):
        Task(kind="render", requires=tags)
    raw.xadd("jobs.tasks", {"data": msgspec.json.encode({"id": "many", "kind": "render", "requires": [*tags]})})
    behind = Task(kind="render", requires=frozenset({"g" * 64, "h" * 64, "i" * 64}))
    await queue.enqueue(behind)
    assert [found.id for found in await queue.pop_many(10)] == [behind.id]
    assert [letter.reason async for letter in queue.dead.iterate()] == ["decode_error"]


@pytest.mark.parametrize(
    "name", ["normal:kind=" + "k" * 500, "normal:requires={x", "normal:requires=a\nb", "normal:kind=\xff", "junk"]
)
async def test_a_lane_with_a_name_that_no_stream_can_have_is_ignored(
    queue: RedisTaskQueue, raw: redis.Redis, name: str
) -> None:
    raw.sadd("{jobs}:lanes", name)
    await queue.enqueue(Task(kind="render", id="behind"))
    assert [found.id for found in await queue.pop_many(10)] == ["behind"]
    assert await queue.requeue_orphans() == 0
    assert [found.id for found in await queue.list_pending()] == ["behind"]
    assert len((await queue.gauges()).lanes) == 1


async def test_beyond_a_number_of_lanes_no_new_one_is_opened(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    await queue.enqueue(Task(kind="render", id="in-a-lane", requires=frozenset({"gpu"})))
    raw.sadd("{jobs}:lanes", *(f"normal:kind=junk-{n}" for n in range(999)))
    with pytest.raises(ServerError, match=r"has 1000 lanes and opens none for normal:requires=tpu"):
        await queue.enqueue(Task(kind="render", requires=frozenset({"tpu"})))
    await queue.enqueue(Task(kind="unknown", id="one-more"))
    await queue.enqueue_many(
        [
            Task(kind="mail", id="urgent", priority=Priority.HIGH),
            Task(kind="render", id="known", requires=frozenset({"gpu"})),
        ]
    )
    assert [found.id for found in await queue.pop_many(10, kinds={"mail"}, provides=())] == ["urgent"]
    [letter] = [letter async for letter in queue.dead.iterate()]
    assert (letter.task_id, letter.reason) == ("one-more", "invalid")
    result = await queue.wait_for_result("one-more", 1)
    assert result is not None
    assert "no room for another lane" in str(result.error)
    raw.xadd("jobs.dead", {"data": msgspec.json.encode(Task(kind="x", id="dead", requires=frozenset({"tpu"})))})
    with pytest.raises(ServerError, match="1000 lanes"):
        await queue.dead.redrive()
    assert raw.scard("{jobs}:lanes") == 1_002  # those of two priorities have joined


async def test_a_task_whose_follow_up_cannot_be_added_has_failed(redis_url: str, raw: redis.Redis) -> None:
    handlers, runs = Handlers(), list[int]()

    @handlers.task("render")
    async def render(task: Task) -> None:
        runs.append(task.attempts)

    raw.sadd("{jobs}:lanes", *(f"normal:kind=junk-{n}" for n in range(1_000)))
    follow_up = Task(kind="mail", requires=frozenset({"tpu"}))
    async with RedisTaskQueue(redis_url, "jobs", max_retry=0) as queue:
        await queue.enqueue(Task(kind="render", id="parent", then=(follow_up,)))
        async with running(quick(queue, handlers)):
            result = await queue.wait_for_result("parent", DEADLINE_S)
    assert result is not None
    assert (result.status, runs) == (Status.ERROR, [1])


async def test_the_kind_of_an_entry_is_counted_if_it_can_be_one(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    raw.xadd("jobs.tasks", {"data": "no task", "kind": "k" * 3_000_000})
    raw.xadd("jobs.tasks", {"data": '{"kind": "%s"}' % ("k" * 3_000)})
    for kind in ("k" * 3_000_000, "render"):
        raw.xadd("jobs.tasks", {"data": "no task", "kind": kind, "task_id": "t-1"})
    assert await queue.pop_many(10, block=False) == []
    assert (await queue.gauges()).dead == {"unknown": 3, "render": 1}


async def test_a_kind_of_megabytes_is_not_counted_when_its_worker_dies(
    queue: RedisTaskQueue, raw: redis.Redis, redis_url: str
) -> None:
    raw.xadd("jobs.tasks", {"data": msgspec.json.encode(Task(kind="render", id="t-1")), "kind": "k" * 3_000_000})
    async with RedisTaskQueue(redis_url, "jobs", max_retry=0) as strict:
        assert await strict.pop(block=False) is not None
        await strict.requeue_orphans(idle_ms=0)
    assert (await queue.gauges()).dead == {"unknown": 1}


async def test_results_can_be_trimmed_behind_an_entry_that_names_thousands_of_tasks(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    names = [
        word
        for n in range(8_000)
        for word in (b"task_id", b"t-%d" % n, *(b"kind", b"k", b"status", b"ok", b"data", b""))
    ]
    entry_id = raw.execute_command("XADD", "jobs.results", "1-1", *names)
    raw.hset("{jobs}:done", mapping={f"t-{n}": entry_id for n in range(0, 8_000, 2)})
    await queue.trim()
    assert (raw.xlen("jobs.results"), raw.hlen("{jobs}:done")) == (0, 0)


async def test_an_id_of_an_entry_that_is_no_text_stops_no_recovery(
    queue: RedisTaskQueue, raw: redis.Redis, redis_url: str
) -> None:
    raw.xadd("jobs.tasks", {"data": msgspec.json.encode(Task(kind="render", id="t-1")), "task_id": b"\xff"})
    async with RedisTaskQueue(redis_url, "jobs", max_retry=0) as strict:
        assert await strict.pop(block=False) is not None
        assert await strict.requeue_orphans(idle_ms=0) == 0
    assert raw.xlen("jobs.dead") == 1


async def test_a_notice_of_another_type_does_not_keep_a_result_from_being_stored(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = Task(kind="render")
    await queue.enqueue(task)
    await queue.pop()
    raw.set(queue.keys.notice(task.id), "junk")
    raw.zadd(queue.keys.awaited, {task.id: 2**52})
    assert await queue.finish_many([Result(task_id=task.id, kind=task.kind, data=1)]) == [True]
    assert (await queue.wait_for_result(task.id, DEADLINE_S)).data == 1  # type: ignore[union-attr]


async def test_keys_of_limits_of_another_type_stop_nobody(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    limits = Limits(max_concurrency_per_key=1, rate_per_key=Rate(1_000, 1))
    await queue.enqueue_many([Task(kind="mail", key="bob") for _ in range(2)])
    one, two = await queue.pop_many(2)
    scope = limits.concurrency_of(one)[0][0]
    for key in (queue.keys.permits(scope), queue.keys.queue_for(scope)):
        raw.set(key, "junk")
    scope = limits.rates_of(one)[0][0]
    for key in (queue.keys.rate(scope), queue.keys.reserved(scope)):
        raw.xadd(key, {"junk": "1"})
    assert await queue.admit(one, limits)
    raw.set(queue.keys.queue_for(limits.concurrency_of(one)[0][0]), "junk")
    assert not await queue.admit(two, limits)
    await queue.give_back_permit(one, limits)
