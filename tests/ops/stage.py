"""What the tests of operations put onto a server before they look."""

from __future__ import annotations

import redis

from penstock import ConsumerConfig, FatalError, StreamClient, StreamConsumer, StreamMessage, StreamProducer

STREAM, GROUP, DEAD_LETTERS = "orders", "shipping", "orders_dlq"


def add(raw: redis.Redis, count: int, stream: str = STREAM, data: bytes = b"{}") -> list[str]:
    """Adds entries without Penstock; returns their ids."""
    pipeline = raw.pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd(stream, {"data": data})
    return [entry_id.decode() for entry_id in pipeline.execute()]


def read_as(raw: redis.Redis, consumer: str, count: int, stream: str = STREAM, group: str = GROUP) -> list[str]:
    """Reads new entries as a consumer, which then holds them; returns their ids."""
    if group.encode() not in {info["name"] for info in raw.xinfo_groups(stream)}:
        raw.xgroup_create(stream, group, "0")
    reply = raw.xreadgroup(group, consumer, {stream: ">"}, count=count)
    return [entry_id.decode() for _, rows in reply for entry_id, _ in rows]


async def give_up(client: StreamClient, payloads: list[object], stream: str = STREAM) -> None:
    """Publishes messages that all become dead letters: of even payloads a ValueError, else a KeyError is the cause."""

    async def fail(message: StreamMessage) -> None:
        if message.data % 2:
            raise FatalError(f"order {message.data} is odd") from KeyError(message.data)
        raise FatalError(f"order {message.data} is even")

    await StreamProducer(client, stream).push_many(payloads)
    config = ConsumerConfig(group=GROUP, batch_size=100, block_ms=10)
    await StreamConsumer(client, stream, config, message_handler=fail).run_once()
