"""run_once() does one full pass and reports it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from penstock import DeadLetters, PassReport, StreamClient, StreamConsumer
from tests.helpers.aio import eventually, join, start
from tests.streams.stage import (
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    expire,
    fail,
    pending_ids,
    publish,
    quick,
    read_as,
    running,
)

MakeConsumer = Callable[..., StreamConsumer]


@pytest.fixture
async def consumer_of(client: StreamClient) -> AsyncIterator[MakeConsumer]:
    made: list[StreamConsumer] = []

    def make(handler: Any, **settings: Any) -> StreamConsumer:
        made.append(StreamConsumer(client, STREAM, quick(**{"block_ms": 0, **settings}), handler))
        return made[-1]

    yield make
    for consumer in made:
        await consumer.close()


async def test_a_pass_creates_the_group_and_handles_what_is_there(
    client: StreamClient, raw: redis.Redis, consumer_of: MakeConsumer
) -> None:
    handler = Recorder()
    consumer = consumer_of(handler)
    assert await consumer.run_once() == PassReport()
    assert [info["name"] for info in raw.xinfo_groups(STREAM)] == [GROUP.encode()]
    await publish(client, range(15))
    assert await consumer.run_once() == PassReport(read=10, acked=10)
    assert await consumer.run_once() == PassReport(read=5, acked=5)
    assert handler.seen == list(range(15))
    assert pending_ids(raw) == []


async def test_a_pass_runs_failed_messages_that_are_due(
    client: StreamClient, raw: redis.Redis, consumer_of: MakeConsumer
) -> None:
    await publish(client, range(3))
    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts == 2 else [])
    consumer = consumer_of(handler, retry_initial_delay_ms=60_000, retry_max_delay_ms=60_000)
    assert await consumer.run_once() == PassReport(read=3, retried=3)
    assert await consumer.run_once() == PassReport()
    retries = client.keys(STREAM).retries(GROUP)
    raw.zadd(retries, dict.fromkeys(raw.zrange(retries, 0, -1), 0))  # their time has come
    assert await consumer.run_once() == PassReport(read=3, acked=3)


async def test_a_pass_recovers_what_a_dead_consumer_held_and_buries_poison(
    client: StreamClient, raw: redis.Redis, consumer_of: MakeConsumer
) -> None:
    await publish(client, range(20))
    raw.xgroup_create(STREAM, GROUP, "0")
    ids = read_as(raw, "dead")
    raw.xclaim(STREAM, GROUP, "dead", 0, [ids[13]], retrycount=3, justid=True)
    expire(raw)
    handler = Recorder()
    consumer = consumer_of(handler)
    assert await consumer.run_once() == PassReport(reclaimed=20, acked=19, dead_lettered=1)
    assert sorted(handler.seen) == [n for n in range(20) if n != 13]
    assert max(len(batch) for batch in handler.batches) <= 10
    [letter] = await DeadLetters(client, STREAM).list()
    assert (letter.source_id, letter.deliveries) == (ids[13], 3)


async def test_a_pass_reports_entries_that_are_gone(
    client: StreamClient, raw: redis.Redis, consumer_of: MakeConsumer
) -> None:
    await publish(client, range(5))
    raw.xgroup_create(STREAM, GROUP, "0")
    ids = read_as(raw, "dead")
    expire(raw)
    raw.xdel(STREAM, ids[1], ids[2])
    consumer = consumer_of(Recorder())
    assert await consumer.run_once() == PassReport(reclaimed=3, acked=3, dead_lettered=2, missing=2)
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_a_pass_reports_what_it_buried(client: StreamClient, consumer_of: MakeConsumer) -> None:
    await publish(client, range(4))
    consumer = consumer_of(Recorder(fail), max_deliveries=1)
    assert await consumer.run_once() == PassReport(read=4, dead_lettered=4)


async def test_block_ms_0_does_not_block(consumer_of: MakeConsumer) -> None:
    consumer = consumer_of(Recorder())
    for _ in range(5):
        assert await join(start(consumer.run_once)) == PassReport()


@pytest.mark.usefixtures("default_server")
async def test_a_pass_waits_for_a_message_for_block_ms(client: StreamClient, consumer_of: MakeConsumer) -> None:
    consumer = consumer_of(Recorder(), block_ms=100)
    await consumer.run_once()
    began_s = time.monotonic()
    assert await consumer.run_once() == PassReport()
    assert time.monotonic() - began_s > 0.09


@pytest.mark.usefixtures("default_server")
async def test_run_with_block_ms_0_sees_new_messages_too(client: StreamClient, consumer_of: MakeConsumer) -> None:
    consumer = consumer_of(Recorder())
    async with running(consumer):
        await eventually(lambda: consumer._is_open)
        await publish(client, range(10))
        await eventually(lambda: consumer.metrics().total_acked == 10)


@pytest.mark.usefixtures("default_server")
async def test_a_pass_after_the_group_was_destroyed_creates_it_again(
    client: StreamClient, raw: redis.Redis, consumer_of: MakeConsumer
) -> None:
    await publish(client, range(5))
    handler = Recorder()
    consumer = consumer_of(handler)
    await consumer.run_once()
    raw.xgroup_destroy(STREAM, GROUP)
    await publish(client, range(5, 8))
    await consumer.run_once()
    await consumer.run_once()
    assert handler.seen == list(range(8))
