"""The rights that the reference lists are enough for a producer and for a consumer, and nothing is missing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from penstock import (
    ConsumerConfig,
    DeadLetters,
    OwnedStream,
    RedisMessageQueue,
    StreamBalancer,
    StreamClient,
    StreamConsumer,
    StreamExpired,
    StreamMessage,
    StreamProducer,
    Topic,
)
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from tests.docs.pages import ROOT
from tests.helpers.users import refused


async def test_users_with_the_listed_rights_can_publish_and_consume(
    start_server: Callable[..., EmbeddedServer],
) -> None:
    server = start_server(port=0)
    for user in ("producer", "consumer"):
        allow(server, user, listed_rights()[user])
    async with as_user(server, "producer") as client:
        producer = StreamProducer(client, "orders", max_len=4)
        await producer.push_many(["good", "bad", "good", "good"])
        async with as_user(server, "consumer") as worker_client:
            await consume(worker_client)
        await producer.push("finished entries have made room", dedup_key="once")


def allow(server: EmbeddedServer, user: str, listed: list[str]) -> None:
    known = {name.decode().lower() for name, *_ in ask(server.unix_socket, "COMMAND")}
    rights = [right for right in listed if right[1:].partition("|")[0] in known]  # WAITAOF came with 7.2
    reply = ask(
        server.unix_socket, "ACL", "SETUSER", user, "on", ">secret", "~orders*", "~{orders}:*", "-@all", *rights
    )
    assert reply == b"OK"


def listed_rights() -> dict[str, list[str]]:
    section = (ROOT / "docs" / "reference" / "lua-scripts.md").read_text().partition("## Rights")[2]
    of_producer, _, rest = section.partition("A consumer's user also needs")
    of_consumer, _, rest = rest.partition("The Spark sink's user")
    of_queue = rest.partition("A [queue]")[2].partition("The importer")[0]
    rights = [
        [f"+{word.lower().replace(' ', '|')}" for word in re.findall(r"`([A-Z ]+)`", part)]
        for part in (of_producer, of_consumer, of_queue)
    ]
    return {"producer": rights[0], "consumer": rights[0] + rights[1], "queue": [*rights[0], *rights[1], *rights[2]]}


async def test_a_user_with_the_listed_rights_can_use_a_queue(start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0)
    allow(server, "queue", listed_rights()["queue"])
    async with as_user(server, "queue") as client:
        queue = RedisMessageQueue(
            "orders",
            client=client,
            enable_completed_queue=True,
            enable_failed_queue=True,
            max_delivery_count=2,
            retry_delay_seconds=0.001,
            max_retry_delay_seconds=0.001,
            visibility_timeout_seconds=60,
            heartbeat_interval_seconds=0.1,
            max_pending_length=2,
            pending_overload_policy="drop_oldest",
        )
        for text in ("dropped", "bad", "good"):
            assert await queue.publish(text)
        assert not await queue.publish("good")
        while (await queue.stats()).pending or (await queue.stats()).retrying:
            with contextlib.suppress(ValueError):
                async with queue.process_message() as message:
                    if message == "bad":
                        raise ValueError(message)
        for source in ("pending", "processing", "retrying", "completed", "failed", "dead_letter"):
            await queue.peek(source=source)
        assert await queue.redrive_dead_letters() == 1
        for target in ("pending", "completed", "failed", "dead_letter"):
            await queue.purge(target=target)
        assert await queue.drain()
        await queue.close()
    assert refused(server) == []


async def test_a_user_with_the_listed_rights_can_balance(start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0)
    section = (ROOT / "docs" / "reference" / "balancer.md").read_text().partition("## Rights")[2]
    rights = [f"+{word.lower().replace(' ', '|')}" for word in re.findall(r"`([A-Z ]+)`", section)]
    reply = ask(
        server.unix_socket, "ACL", "SETUSER", "balancer", "on", ">secret", "~*", "resetchannels", "&__keyevent@0__:expired",
        "&__keyspace@0__:*<MUTEX_KEY_SEP>*", "-@all", *rights,
    )  # fmt: skip
    assert reply == b"OK"
    ask(server.unix_socket, "XADD", "svc-input", "*", "lbs-input", "no json")
    ask(server.unix_socket, "XADD", "session-1", "*", "n", "1")
    async with as_user(server, "balancer") as client:
        first = StreamBalancer(client, "svc", id="first")
        async with first as notices:
            await first.add_stream("session-1")
            await anext(notices)
            async with StreamBalancer(client, "svc", id="second") as others:
                await first.release("session-1")
                notice = await anext(others)
        second = StreamBalancer(client, "svc", id="third")

        async def handle(stream: OwnedStream) -> None:
            async for message in stream:
                await stream.commit(message)
                second.stop()
                return

        assert isinstance(notice, StreamExpired)
        await second.run(handle)
        assert await second.announce(Topic("svc", shards=2)) == 2
    assert ask(server.unix_socket, "XLEN", "{svc-input}_dlq") == 1
    assert ask(server.unix_socket, "XLEN", "svc-input") == 2, "the stream is done, and there are two shards"
    assert refused(server) == []


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
