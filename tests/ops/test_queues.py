"""Message queues are counted, looked into and purged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

import penstock.queue.administration as administration_module
from penstock import RedisMessageQueue, StreamClient
from penstock.errors import ConfigurationError, NotFound
from penstock.ops import Inspector
from penstock.tasks import RedisTaskQueue, Task
from tests.helpers.round_trips import count_round_trips
from tests.ops.stage import DEAD_LETTERS, STREAM, add, give_up

pytestmark = pytest.mark.usefixtures("default_server")


async def test_a_queue_is_counted_and_purged(client: StreamClient, inspector: Inspector) -> None:
    queue = RedisMessageQueue("mail", client=client, enable_completed_queue=True)
    for text in ("a", "b", "c"):
        await queue.publish(text)
    async with queue.process_message():
        pass
    [info] = await inspector.queues.all()
    assert (info.name, info.pending, info.processing, info.completed, info.dead_letters) == ("mail", 2, 0, 1, 0)
    assert info.oldest_pending_s >= 0
    assert await inspector.queues.stats("mail") == info or info.pending == 2
    assert await inspector.queues.peek("mail", 5) == ["b", "c"]
    assert await inspector.queues.peek("mail", source="completed") == ["a"]
    assert await inspector.queues.purge("mail") == 2
    assert (await inspector.queues.stats("mail")).pending == 0


async def test_many_queues_are_counted_in_few_round_trips(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        queue = RedisMessageQueue(f"mail-{n:02}", client=client)
        await queue.publish("a")
        await queue.publish("b")
        async with queue.process_message():
            pass
        if n % 2:  # then only a walk through the stream tells what is unread
            raw.xgroup_create(f"mail-{n:02}", "others", "0")
    one_by_one = [await inspector.queues.stats(f"mail-{n:02}") for n in range(30)]
    trips = count_round_trips(monkeypatch, await client.connection(""))
    found = await inspector.queues.all()
    assert len(trips) < 20, "none for each of the queues"
    assert [replace(each, oldest_pending_s=0) for each in found] == [
        replace(each, oldest_pending_s=0) for each in one_by_one
    ]
    assert {each.pending for each in found} == {1}


async def test_an_unknown_queue_is_not_found(client: StreamClient, inspector: Inspector) -> None:
    for call in (inspector.queues.stats, inspector.queues.peek, inspector.queues.purge):
        with pytest.raises(NotFound):
            await call("nothing")
    await RedisMessageQueue("mail", client=client).publish("a")
    with pytest.raises(ConfigurationError, match="source='sent'"):
        await inspector.queues.peek("mail", source="sent")


async def test_only_a_message_queue_is_counted_and_purged_as_one(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await RedisTaskQueue(client, "jobs").enqueue(Task(kind="render"))
    await give_up(client, [1, 2])
    add(raw, 3)
    raw.xadd("mail::completed", {"data": "x"})
    raw.xadd("svc-input", {"lbs-input": "{}"})
    raw.xgroup_create("svc-input", "svc-group", "0")
    lengths = {name: raw.xlen(name) for name in (STREAM, DEAD_LETTERS, "jobs.tasks", "mail::completed", "svc-input")}
    for name in lengths:
        for call in (inspector.queues.stats, inspector.queues.peek, inspector.queues.purge, inspector.queues.newest):
            with pytest.raises(ConfigurationError, match=f"stream '{name}' is not a message queue"):
                await call(name)
    assert {name: raw.xlen(name) for name in lengths} == lengths


async def test_what_arrives_after_the_newest_counted_message_is_not_purged(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = RedisMessageQueue("mail", client=client)
    await queue.publish("a")
    raw.xgroup_create("mail", "penstock-archive", "0")  # nobody has read from the queue yet, but it is archived
    newest = await inspector.queues.newest("mail")
    await queue.publish("b")
    assert await inspector.queues.purge("mail", until=newest) == 1
    drop_unread = administration_module.drop_unread

    async def drop_beside_a_producer(*args: Any, **options: Any) -> Any:
        await queue.publish("c")
        return await drop_unread(*args, **options)

    monkeypatch.setattr(administration_module, "drop_unread", drop_beside_a_producer)
    assert await inspector.queues.purge("mail") == 1
    assert set(await inspector.queues.peek("mail")) == {"c"}
