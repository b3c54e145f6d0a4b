"""redis-stream-queue 0.1 and Penstock read each other's entries and share a group, so that a fleet can move piece by piece.

That library needs a server of version 7 or newer, so only those are used here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
import redis_stream_queue as rsq

import penstock
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import eventually, join, start

pytestmark = [pytest.mark.servers("7.0", "valkey"), pytest.mark.every_server]

STREAM = "orders"
GROUP = "order_workers"
PAYLOADS = [
    {"order_id": 1},
    {"name": "Zoë 你好 🚰", "tags": ["a", "b"], "nested": {"deep": [1, 2.5, None, True]}},
    {},
]
BINARY = [*PAYLOADS, {"blob": b"\x00\xff", "big": 2**63}]
SERIALIZERS = {
    "default": (None, None, PAYLOADS),
    "json": (rsq.JsonSerializer, penstock.JsonSerializer, PAYLOADS),
    "msgpack": (rsq.MsgpackSerializer, penstock.MsgpackSerializer, BINARY),
    "pickle": (
        rsq.PickleSerializer,
        lambda: penstock.PickleSerializer(allow_pickle=True),
        [*BINARY, {"set": {1, 2}, "complex": 1j}],
    ),
}
by_serializer = pytest.mark.parametrize(("old", "new", "payloads"), SERIALIZERS.values(), ids=SERIALIZERS)


def made(serializer: Callable[[], Any] | None) -> Any:
    return serializer() if serializer is not None else None


def config(library: Any, **settings: Any) -> Any:
    return library.ConsumerConfig(**{"group": GROUP, "batch_size": 10, "block_ms": 100, **settings})


class Recorder:
    """A handler for either library that remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, messages: list[Any]) -> list[str]:
        self.seen += [message.data for message in messages]
        return [message.id for message in messages]


def crash(held: list[str]) -> Callable[[list[Any]], Any]:
    """Returns a handler that never comes back, as in a process that was killed."""

    async def handler(messages: list[Any]) -> list[str]:
        held.extend(message.id for message in messages)
        await asyncio.Event().wait()
        return []

    return handler


@asynccontextmanager
async def running(*consumers: Any) -> AsyncIterator[None]:
    tasks = [start(consumer.run) for consumer in consumers]
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()
        for task in tasks:
            await join(task)


def pending(raw: redis.Redis) -> int:
    return int(raw.xpending(STREAM, GROUP)["pending"])


# --- one library writes, the other reads ----------------------------------------------------------


@by_serializer
async def test_penstock_reads_what_redis_stream_queue_wrote(client, old_client, raw, old, new, payloads):
    producer = rsq.StreamProducer(old_client, STREAM, serializer=made(old))
    ids = [await producer.push(payloads[0]), *await producer.push_many(payloads[1:])]
    got: list[penstock.StreamMessage] = []

    async def handle(messages: list[penstock.StreamMessage]) -> list[str]:
        got.extend(messages)
        return [message.id for message in messages]

    consumer = penstock.StreamConsumer(client, STREAM, config(penstock), handle, serializer=made(new))
    report = await consumer.run_once()
    await consumer.close()
    assert [message.data for message in got] == payloads
    assert [message.id for message in got] == ids
    assert all(message.message_id is None and message.key is None and message.headers == {} for message in got)
    assert report.acked == len(payloads)
    assert pending(raw) == 0


@by_serializer
async def test_redis_stream_queue_reads_what_penstock_wrote(client, old_client, raw, old, new, payloads):
    producer = penstock.StreamProducer(client, STREAM, serializer=made(new))
    await producer.push_many(payloads[:-1])
    # Whatever else Penstock writes stands beside the payload, where the other library does not look.
    await producer.push(payloads[-1], key="customer-7", headers={"trace": "abc"}, expires_in_ms=60_000)
    recorder = Recorder()
    consumer = rsq.StreamConsumer(old_client, STREAM, config(rsq), recorder, serializer=made(old))
    await consumer.run_once()
    assert recorder.seen == payloads
    assert pending(raw) == 0


@by_serializer
async def test_the_payload_bytes_mean_the_same_to_both(old, new, payloads):
    old_serializer, new_serializer = made(old or rsq.JsonSerializer), made(new or penstock.JsonSerializer)
    for payload in payloads:
        assert new_serializer.decode(old_serializer.encode(payload)) == payload
        assert old_serializer.decode(new_serializer.encode(payload)) == payload


# --- both in one group ----------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["penstock", "redis_stream_queue"])
async def test_side_by_side_in_one_group_they_share_the_work_and_lose_nothing(client, old_client, raw, writer):
    library, way = (penstock, client) if writer == "penstock" else (rsq, old_client)
    producer = library.StreamProducer(way, STREAM, group=GROUP)
    await producer.ensure_group()
    ours, theirs = Recorder(), Recorder()
    consumers = [
        penstock.StreamConsumer(client, STREAM, config(penstock), ours),
        rsq.StreamConsumer(old_client, STREAM, config(rsq), theirs),
    ]
    sent = 0

    async def both_had_work() -> bool:
        nonlocal sent
        await producer.push_many([{"n": n} for n in range(sent, sent + 50)])
        sent += 50
        return bool(ours.seen and theirs.seen and sent >= 1000)

    async with running(*consumers):
        await eventually(both_had_work)
        await eventually(lambda: len(ours.seen) + len(theirs.seen) >= sent and not pending(raw))
    handled = [payload["n"] for payload in ours.seen + theirs.seen]
    assert sorted(handled) == list(range(sent)), "each message is handled, and by one of them only"


async def test_penstock_takes_over_from_a_redis_stream_queue_worker_that_died(client, old_client, raw):
    await penstock.StreamProducer(client, STREAM).push_many([{"n": n} for n in range(25)])
    held: list[str] = []
    dead = rsq.StreamConsumer(old_client, STREAM, config(rsq, batch_size=10), crash(held))
    dying = start(dead.run)
    await eventually(lambda: len(held) == 10)
    dying.cancel()
    with suppress(asyncio.CancelledError):
        await dying
    Ageing(raw, STREAM, GROUP).expire()
    recorder = Recorder()
    async with running(penstock.StreamConsumer(client, STREAM, config(penstock, min_idle_claim_ms=LEASE_MS), recorder)):
        await eventually(lambda: len(recorder.seen) >= 25 and not pending(raw))
    assert sorted(payload["n"] for payload in recorder.seen) == list(range(25))


async def test_redis_stream_queue_takes_over_from_a_penstock_worker_that_died(client, old_client, raw):
    # What the server sees of a killed process: entries that were handed to its name, and then nothing more.
    producer = penstock.StreamProducer(client, STREAM, GROUP)
    await producer.ensure_group()
    await producer.push_many([{"n": n} for n in range(25)])
    raw.xreadgroup(GROUP, "killed", {STREAM: ">"}, count=10)
    Ageing(raw, STREAM, GROUP).expire()
    recorder = Recorder()
    async with running(rsq.StreamConsumer(old_client, STREAM, config(rsq, min_idle_claim_ms=LEASE_MS), recorder)):
        await eventually(lambda: len(recorder.seen) >= 25 and not pending(raw))
    assert sorted(payload["n"] for payload in recorder.seen) == list(range(25))


async def test_a_message_that_waits_for_its_retry_may_be_finished_by_redis_stream_queue(client, old_client, raw):
    await penstock.StreamProducer(client, STREAM).push({"n": 1})
    failures = 0

    async def fail(_: list[Any]) -> list[str]:
        nonlocal failures
        failures += 1
        raise ValueError("not here")

    settings = config(penstock, min_idle_claim_ms=LEASE_MS, retry_initial_delay_ms=60_000, retry_jitter=0.0)
    failing = penstock.StreamConsumer(client, STREAM, settings, fail)
    async with running(failing):
        await eventually(lambda: failing.metrics().total_retried == 1)
        Ageing(raw, STREAM, GROUP).expire()
        recorder = Recorder()
        async with running(rsq.StreamConsumer(old_client, STREAM, config(rsq, min_idle_claim_ms=LEASE_MS), recorder)):
            await eventually(lambda: recorder.seen and not pending(raw))
        # When its time comes Penstock finds it settled, and forgets it.
        retries = f"{{{STREAM}}}:retries:{GROUP}"
        raw.zadd(retries, dict.fromkeys(raw.zrange(retries, 0, -1), 1))
        await eventually(lambda: not raw.zcard(retries))
    assert (failures, recorder.seen) == (1, [{"n": 1}])
    assert raw.xlen(f"{STREAM}_dlq") == 0


async def test_a_lease_that_penstock_renews_is_respected_by_redis_stream_queue(client, old_client, raw):
    await penstock.StreamProducer(client, STREAM).push({"n": 1})
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(messages: list[Any]) -> list[str]:
        begun.set()
        await may_end.wait()
        return [message.id for message in messages]

    recorder = Recorder()
    leases = Ageing(raw, STREAM, GROUP)
    settings = config(penstock, min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=50)
    ours = penstock.StreamConsumer(client, STREAM, settings, slow)
    theirs = rsq.StreamConsumer(old_client, STREAM, config(rsq, min_idle_claim_ms=LEASE_MS), recorder)
    async with running(ours):
        await eventually(begun.is_set)
        async with running(theirs):
            for _ in range(3):
                leases.age()
                await eventually(leases.is_renewed)
        assert recorder.seen == []
        may_end.set()
        await eventually(lambda: not pending(raw))
    assert ours.metrics().total_acked == 1
