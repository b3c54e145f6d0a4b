"""Message queues are counted, looked into and purged."""

from __future__ import annotations

import pytest

from penstock import RedisMessageQueue, StreamClient
from penstock.errors import ConfigurationError, NotFound
from penstock.ops import Inspector

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


async def test_an_unknown_queue_is_not_found(client: StreamClient, inspector: Inspector) -> None:
    for call in (inspector.queues.stats, inspector.queues.peek, inspector.queues.purge):
        with pytest.raises(NotFound):
            await call("nothing")
    await RedisMessageQueue("mail", client=client).publish("a")
    with pytest.raises(ConfigurationError, match="source='sent'"):
        await inspector.queues.peek("mail", source="sent")
