"""Where redis-stream-queue 0.1 loses messages, shows wrong numbers or slows down, Penstock keeps the promise."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import redis
import redis_stream_queue as rsq

from penstock import ConsumerConfig, ConsumerGroup, StreamClient, StreamConsumer, StreamProducer
from penstock.errors import AuthenticationFailed
from penstock.redis.embedded import EmbeddedServer
from tests.helpers.aio import eventually, join, start

STREAM = "orders"
GROUP = "order_workers"


def quick(**settings: Any) -> ConsumerConfig:
    times = {"block_ms": 100, "min_idle_claim_ms": 60_000, "retry_initial_delay_ms": 10}
    return ConsumerConfig(**{"group": GROUP, **times, **settings})


async def everything(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


# --- clients --------------------------------------------------------------------------------------


async def test_closing_one_client_leaves_others_to_the_same_server_open(default_server, raw):
    address = {"host": "127.0.0.1", "port": default_server.port}
    first, second = StreamClient(**address), StreamClient(**address)
    await StreamProducer(first, STREAM).push({"n": 1})
    await StreamProducer(second, STREAM).push({"n": 2})
    await first.close()
    await StreamProducer(second, STREAM).push({"n": 3})
    await second.close()
    assert raw.xlen(STREAM) == 3


async def test_a_client_never_uses_the_login_of_another(start_server: Callable[..., EmbeddedServer]):
    server = start_server(port=0, options={"requirepass": "right"})
    address = {"host": "127.0.0.1", "port": server.port}
    async with StreamClient(**address, password="right") as known, StreamClient(**address, password="wrong") as unknown:
        assert await known.ping()
        with pytest.raises(AuthenticationFailed):
            await unknown.ping()


# --- numbers --------------------------------------------------------------------------------------


async def test_the_handler_and_the_dlq_handler_see_how_often_a_message_was_delivered(client):
    seen, dead_lettered = [], []

    async def fail(messages: list[Any]) -> list[str]:
        seen.extend(message.delivery_count for message in messages)
        raise ValueError("always")

    async def on_dlq(message: Any, reason: str) -> None:
        dead_lettered.append((message.delivery_count, reason))

    await StreamProducer(client, STREAM).push({"n": 1})
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=4), fail, on_dlq)
    running = start(consumer.run)
    await eventually(lambda: dead_lettered)
    consumer.stop()
    await join(running)
    assert seen == [1, 2, 3, 4]
    assert dead_lettered == [(4, "max_deliveries")]


async def test_only_what_the_server_acknowledged_counts_as_acknowledged(client, raw):
    await StreamProducer(client, STREAM).push({"n": 1})

    async def boast(messages: list[Any]) -> list[str]:
        return [messages[0].id, messages[0].id, "1-1", "2-2"]

    consumer = StreamConsumer(client, STREAM, quick(), boast)
    report = await consumer.run_once()
    await consumer.close()
    assert (report.acked, consumer.metrics().total_acked) == (1, 1)
    assert raw.xpending(STREAM, GROUP)["pending"] == 0


async def test_lag_is_true_after_entries_were_deleted_and_trimmed(client, raw):
    producer, group = StreamProducer(client, STREAM, GROUP), ConsumerGroup(client, STREAM, GROUP)
    await producer.ensure_group()
    ids = await producer.push_many([{"n": n} for n in range(30)])
    raw.xreadgroup(GROUP, "someone", {STREAM: ">"}, count=10)
    raw.xdel(STREAM, *ids[12:15])
    assert (await group.stats()).lag == (await group.lag()).count == 17
    raw.xtrim(STREAM, maxlen=5, approximate=False)
    assert (await group.stats()).lag == 5
    assert (await group.health_check(max_lag=4))["healthy"] is False


async def test_a_group_is_healthy_though_former_consumers_are_silent(client, raw):
    group = ConsumerGroup(client, STREAM, GROUP)
    await group.ensure()
    raw.xgroup_createconsumer(STREAM, GROUP, "before-the-restart")

    async def health_when_silent(name: str) -> dict[str, Any]:
        await eventually(lambda: idle_ms(raw, name) > 20)
        return await group.health_check(max_idle_ms=10)

    assert (await health_when_silent("before-the-restart"))["healthy"] is True
    raw.xadd(STREAM, {"data": "{}"})
    raw.xreadgroup(GROUP, "stuck", {STREAM: ">"})
    health = await health_when_silent("stuck")
    assert health["healthy"] is False
    [issue] = health["issues"]
    assert "stuck" in issue, "the one that sits on work is named, the other is not"


def idle_ms(raw: redis.Redis, name: str) -> int:
    return next(row["idle"] for row in raw.xinfo_consumers(STREAM, GROUP) if row["name"] == name.encode())


async def test_former_consumers_are_removed_but_never_with_work_in_their_hands(client, raw):
    await ConsumerGroup(client, STREAM, GROUP).ensure()
    raw.xgroup_createconsumer(STREAM, GROUP, "gone")
    entry_id = raw.xadd(STREAM, {"data": "{}"})
    raw.xreadgroup(GROUP, "gone-with-work", {STREAM: ">"})
    handled = []

    async def handle(messages: list[Any]) -> list[str]:
        handled.extend(message.id for message in messages)
        return await everything(messages)

    settings = quick(min_idle_claim_ms=1_000, consumer_ttl_ms=100, retention_interval_ms=50)
    consumer = StreamConsumer(client, STREAM, settings, handle)

    def names() -> set[bytes]:
        return {row["name"] for row in raw.xinfo_consumers(STREAM, GROUP)}

    running = start(consumer.run)
    await eventually(lambda: b"gone" not in names())
    assert handled or raw.xpending(STREAM, GROUP)["pending"] == 1, "removing a consumer drops what is pending with it"
    await eventually(lambda: b"gone-with-work" not in names())
    assert handled == [entry_id.decode()]
    consumer.stop()
    await join(running)


# --- cost -----------------------------------------------------------------------------------------

IN_FLIGHT = 20_000
LOOPS = 10


def cost(raw: redis.Redis) -> dict[str, dict[str, int]]:
    return {name.removeprefix("cmdstat_"): stats for name, stats in raw.info("commandstats").items()}


def spent(raw: redis.Redis, before: dict[str, dict[str, int]]) -> tuple[int, int]:
    """Returns calls and microseconds since then, without those of looking."""
    calls = microseconds = 0
    for name, stats in cost(raw).items():
        if name not in {"info", "config|resetstat"}:
            earlier = before.get(name, {"calls": 0, "usec": 0})
            calls += stats["calls"] - earlier["calls"]
            microseconds += stats["usec"] - earlier["usec"]
    return calls, microseconds


def fill(raw: redis.Redis) -> None:
    """Lets another consumer hold many messages, as it well may: it is alive."""
    with raw.pipeline(transaction=False) as pipeline:
        for _ in range(IN_FLIGHT):
            pipeline.xadd(STREAM, {"data": "{}"})
        pipeline.execute()
    raw.xreadgroup(GROUP, "busy-elsewhere", {STREAM: ">"}, count=IN_FLIGHT)


@pytest.mark.servers("7.0", "valkey")  # the other library runs on no older one
async def test_what_others_have_in_flight_does_not_make_the_loop_dearer(client, old_client, raw):
    group = ConsumerGroup(client, STREAM, GROUP)
    await group.ensure()
    settings = {"group": GROUP, "block_ms": 1, "min_idle_claim_ms": 600_000}
    ours = StreamConsumer(client, STREAM, ConsumerConfig(**settings), everything)
    theirs = rsq.StreamConsumer(old_client, STREAM, rsq.ConsumerConfig(**settings), everything)

    async def loops_of(consumer: Any) -> tuple[int, float]:
        """Returns the calls of all passes, and the microseconds of a usual one: a busy machine delays some."""
        await consumer.run_once()  # what only the first pass does
        passes = []
        for _ in range(LOOPS):
            before = cost(raw)
            await consumer.run_once()
            passes.append(spent(raw, before))
        return sum(calls for calls, _ in passes), median(microseconds for _, microseconds in passes)

    quiet_calls, _ = await loops_of(ours)
    fill(raw)
    busy_calls, busy_us = await loops_of(ours)
    _, their_us = await loops_of(theirs)
    await ours.close()
    assert busy_calls == quiet_calls, "the commands of a pass are the same whatever others hold"
    assert busy_us * 10 < their_us


async def test_looking_for_orphans_looks_at_a_bounded_part_of_what_others_hold(client, raw):
    group = ConsumerGroup(client, STREAM, GROUP)
    await group.ensure()
    fill(raw)
    # Every pass looks for orphans here, and finds that all the others hold is in good hands.
    settings = ConsumerConfig(group=GROUP, block_ms=1, min_idle_claim_ms=600_000, recovery_interval_ms=1)
    consumer = StreamConsumer(client, STREAM, settings, everything)
    await consumer.run_once()
    first = before = cost(raw)
    looking_us = []
    for _ in range(LOOPS):
        await consumer.run_once()
        after = cost(raw)
        looking_us.append(after["xpending"]["usec"] - before["xpending"]["usec"])
        before = after
    await consumer.close()
    assert before["evalsha"]["calls"] - first["evalsha"]["calls"] <= 3 * LOOPS
    whole = cost(raw)
    raw.xpending_range(STREAM, GROUP, "-", "+", IN_FLIGHT)
    _, whole_us = spent(raw, whole)
    # Of a usual look: a busy machine delays some.
    assert median(looking_us) < whole_us / 4, "one look costs a fraction of a walk through the whole list"
