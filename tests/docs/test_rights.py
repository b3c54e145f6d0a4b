"""The rights that the reference lists are enough for a producer and for a consumer, and nothing is missing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import redis

from penstock import (
    ConsumerConfig,
    DeadLetters,
    RedisMessageQueue,
    StreamClient,
    StreamConsumer,
    StreamMessage,
    StreamProducer,
    import_queue,
)
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from tests.docs.pages import ROOT
from tests.helpers.list_queue import restore


async def test_users_with_the_listed_rights_can_publish_and_consume(
    start_server: Callable[..., EmbeddedServer],
) -> None:
    server = start_server(port=0)
    make_users(server)
    async with as_user(server, "producer") as client:
        producer = StreamProducer(client, "orders", max_len=4)
        await producer.push_many(["good", "bad", "good", "good"])
        async with as_user(server, "consumer") as worker_client:
            await consume(worker_client)
        await producer.push("finished entries have made room", dedup_key="once")


async def test_a_user_with_the_listed_rights_can_import_and_use_a_queue(
    start_server: Callable[..., EmbeddedServer],
) -> None:
    server = start_server(port=0)
    make_users(server)
    with redis.Redis(unix_socket_path=server.unix_socket) as raw:
        restore(raw, "abandoned")
    async with as_user(server, "importer") as client:
        assert (await import_queue(client, "orders", is_dry_run=True)).pending == 4
        assert (await import_queue(client, "orders")).is_complete
    async with as_user(server, "queue") as client:
        await use(client)


async def use(client: StreamClient) -> None:
    """Does with a queue what can be done, logs, failures and administration included."""
    queue = RedisMessageQueue(
        "orders",
        client=client,
        max_delivery_count=2,
        retry_delay_seconds=0.01,
        visibility_timeout_seconds=5,
        heartbeat_interval_seconds=0.1,
        enable_completed_queue=True,
        enable_failed_queue=True,
        max_pending_length=6,
        pending_overload_policy="drop_oldest",
    )
    for number in range(3):
        await queue.publish(str(number))
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            await fail(queue)
    async with queue.process_message():
        pass
    assert await queue.peek(source="pending")
    assert (await queue.stats()).completed == 2
    await queue.redrive_dead_letters()
    for target in ("pending", "completed", "failed", "dead_letter"):
        await queue.purge(target=target)
    assert await queue.drain()
    await queue.close()


async def fail(queue: RedisMessageQueue) -> None:
    async with queue.process_message():
        raise ValueError("bad")


def make_users(server: EmbeddedServer) -> None:
    """Makes a user for each role, with the listed rights and no others."""
    known = {name.decode().lower() for name, *_ in ask(server.unix_socket, "COMMAND")}
    for user, listed in listed_rights().items():
        rights = [right for right in listed if right[1:].partition("|")[0] in known]  # WAITAOF came with 7.2
        reply = ask(
            server.unix_socket, "ACL", "SETUSER", user, "on", ">secret", "~orders*", "~{orders}:*", "-@all", *rights
        )
        assert reply == b"OK"


def listed_rights() -> dict[str, list[str]]:
    section = (ROOT / "docs" / "reference" / "lua-scripts.md").read_text().partition("## Rights")[2]
    parts = re.split("one of a consumer also|A user of the Spark sink|A user of a queue|The import needs", section)
    producer, consumer, _, queue, importer = (
        [f"+{word.lower().replace(' ', '|')}" for word in re.findall(r"`([A-Z ]+)`", part)] for part in parts
    )
    consumer = producer + consumer
    return {
        "producer": producer,
        "consumer": consumer,
        "queue": consumer + queue,
        "importer": consumer + queue + importer,
    }


def as_user(server: EmbeddedServer, user: str) -> StreamClient:
    return StreamClient.from_url(server.url, username=user, password="secret")


async def consume(client: StreamClient) -> None:
    def handle(message: StreamMessage) -> None:
        if message.data == "bad":
            raise ValueError("bad")
        if consumer.metrics().total_dlq:
            consumer.stop()

    def given_up(message: StreamMessage, reason: str) -> None:
        consumer.stop()

    config = ConsumerConfig(
        group="workers",
        worker_name="one",
        min_idle_claim_ms=200,
        block_ms=100,
        retry_initial_delay_ms=10,
        max_deliveries=2,
        retention_interval_ms=1,
    )
    consumer = StreamConsumer(client, "orders", config, message_handler=handle, dlq_handler=given_up)
    await consumer.run()
    assert consumer.metrics().total_acked == 3
    assert await DeadLetters(client, "orders").count() == 1
