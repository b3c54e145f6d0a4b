"""What a message costs the server: its payload once, and one command for each step of its life."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient

PAYLOAD = 100_000
COUNT = 50


@pytest.fixture
async def metered(redis_url: str) -> AsyncIterator[RedisMessageQueue]:
    async with StreamClient.from_url(redis_url) as client:
        queue = RedisMessageQueue("orders", client=client)
        yield queue
        await queue.close()


async def test_a_payload_in_flight_is_stored_once(metered: RedisMessageQueue, raw: redis.Redis) -> None:
    for number in range(3):
        assert await metered.publish(f"{number}{'x' * PAYLOAD}")
    async with metered.process_message() as message:
        assert message == "0" + "x" * PAYLOAD
        used = sum(raw.memory_usage(key, samples=0) or 0 for key in raw.scan_iter())
        assert used < 1.3 * 3 * PAYLOAD


async def test_a_finished_message_leaves_nothing_but_its_deduplication_key(
    metered: RedisMessageQueue, raw: redis.Redis
) -> None:
    await metered.publish("x" * PAYLOAD)
    async with metered.process_message():
        pass
    used = sum(raw.memory_usage(key, samples=0) or 0 for key in raw.scan_iter())
    assert used < 0.1 * PAYLOAD


async def test_publishing_and_processing_are_three_commands_a_message(
    metered: RedisMessageQueue, raw: redis.Redis
) -> None:
    for text in ("first", "second"):  # connections, scripts and the group are made
        await metered.publish(text)
        async with metered.process_message():
            pass
    raw.config_resetstat()
    for number in range(COUNT):
        await metered.publish(str(number))
    assert sent(raw) == {"evalsha": COUNT}
    raw.config_resetstat()
    for number in range(COUNT):
        async with metered.process_message() as message:
            assert message == str(number)
    found = sent(raw)
    assert COUNT <= found["xreadgroup"] <= COUNT + 1  # the last one is taken ahead, and finds nothing
    # Beside one finish() a message: what looks for messages that are due or abandoned, each about once a second.
    assert COUNT <= found["evalsha"] < 1.5 * COUNT


def sent(raw: redis.Redis) -> dict[str, int]:
    """Returns how often commands were sent; what scripts call does not count."""
    stats = raw.info("commandstats")
    return {
        name: stats[f"cmdstat_{name}"]["calls"]
        for name in ("evalsha", "eval", "xreadgroup")
        if f"cmdstat_{name}" in stats
    }
