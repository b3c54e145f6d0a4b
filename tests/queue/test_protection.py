"""Signed and encrypted messages of a queue: what a stranger writes is a dead letter, and neighbours go on."""

from __future__ import annotations

import pytest
import redis

from penstock import Protection, RedisMessageQueue, StreamClient
from penstock.protection import Mode

KEY = b"k" * 32


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
async def test_only_what_a_holder_of_the_key_published_is_handed_out(
    mode: Mode, redis_url: str, raw: redis.Redis
) -> None:
    async with StreamClient.from_url(redis_url, protection=Protection(mode, {"2026": KEY})) as client:
        queue = RedisMessageQueue("orders", client=client, deduplication=True)
        raw.xadd("orders", {"data": b"plain", "message_id": "m-0"})
        assert await queue.publish("first")
        assert not await queue.publish("first"), "protection does not hide a duplicate"
        assert await queue.publish("second")
        assert b"first" not in raw.xrange("orders")[1][1][b"data"] or mode == "sign"
        assert await queue.peek(3) == [b"plain", "first", "second"]
        seen = []
        for _ in range(2):
            async with queue.process_message() as message:
                seen.append(message)
        assert seen == ["first", "second"]
        [(_, letter)] = raw.xrange("orders::dlq")
        assert (letter[b"dlq_reason"], letter[b"data"]) == (b"not_authentic", b"plain")
