"""Message queues are counted, looked into and purged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient
from penstock.errors import ConfigurationError, NotFound
from penstock.ops import Inspector
from tests.helpers.round_trips import count_round_trips

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
