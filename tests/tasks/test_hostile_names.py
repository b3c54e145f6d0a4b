"""Kinds, capabilities, keys and ids of an entry become names of keys and fields: none of them stops a worker."""

from __future__ import annotations

import msgspec
import pytest
import redis

from penstock.errors import ConfigurationError, ServerError
from penstock.task import Priority, Task
from penstock.tasks import RedisTaskQueue
from tests.helpers.aio import DEADLINE_S

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
