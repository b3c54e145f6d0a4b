"""A producer counts what it does, forgets nobody who waits, and outlives the event loop in which it began."""

from __future__ import annotations

import gc

import pytest
import redis

from penstock import StreamClient, StreamProducer
from penstock.errors import ConfigurationError
from tests.helpers.aio import eventually, next_turn, outcomes, start
from tests.helpers.commandstats import calls
from tests.streams.stage import GROUP, STREAM

# async only
import asyncio  # isort: skip
# end async only

pytestmark = pytest.mark.usefixtures("default_server")


async def test_the_numbers_start_at_zero_and_count_what_was_pushed(client: StreamClient) -> None:
    producer = StreamProducer(client, STREAM)
    assert producer.metrics().total_pushed == 0
    assert producer.metrics().uptime_secs == 0
    await producer.push({"n": 1})
    await producer.push_many([{"n": 2}, {"n": 3}])
    assert producer.metrics().total_pushed == 3
    assert 0 < producer.metrics().tps <= 3


def those_with(total_pushed: int) -> int:
    return sum(metrics.total_pushed == total_pushed for metrics in StreamProducer.all_metrics())


async def push_once(client: StreamClient, count: int) -> None:
    one, other = StreamProducer(client, STREAM), StreamProducer(client, "invoices")
    await one.push_many(range(count))
    await other.push_many(range(count))
    assert those_with(count) == 2


@pytest.mark.acl(stream=("orders", "invoices"))
async def test_all_metrics_has_every_living_producer_and_no_dead_one(client: StreamClient) -> None:
    await push_once(client, 1_237)  # a number that no other test leaves behind
    await eventually(lambda: gc.collect() >= 0 and those_with(1_237) == 0)


async def test_ensure_group_creates_the_group_at_the_beginning_and_leaves_one_that_exists(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, GROUP)
    await producer.push({"n": 1})
    await producer.ensure_group()
    await producer.ensure_group("auditors")
    raw.xgroup_setid(STREAM, GROUP, "$")
    await StreamProducer(client, STREAM).ensure_group(GROUP)
    groups = {info["name"]: info["last-delivered-id"] for info in raw.xinfo_groups(STREAM)}
    assert groups[b"auditors"] == b"0-0"
    assert groups[GROUP.encode()] != b"0-0"


async def test_ensure_group_without_a_name_says_what_to_do(client: StreamClient) -> None:
    with pytest.raises(ConfigurationError, match="ensure_group"):
        await StreamProducer(client, STREAM).ensure_group()


async def test_close_leaves_the_client_open(client: StreamClient) -> None:
    producer = StreamProducer(client, STREAM)
    await producer.push({"n": 1})
    await producer.close()
    assert await client.ping()
    assert await producer.push({"n": 2})  # and the producer itself connects again


async def test_a_full_buffer_makes_callers_wait_and_drops_none(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, max_buffered=5)
    pushes = [start(producer.push, {"n": n}) for n in range(100)]
    ids = await outcomes(pushes)
    assert {entry_id.decode() for entry_id, _ in raw.xrange(STREAM)} == set(ids)
    assert len(set(ids)) == 100
    # async only
    assert calls(raw, "evalsha") >= 100 // 5
    # end async only


async def test_linger_collects_more_into_one_batch(client: StreamClient, raw: redis.Redis) -> None:
    await StreamProducer(client, STREAM).push({"n": -1})  # the server knows the script from now on
    # Tasks begin in one turn of the loop; ten threads begin when the machine lets them.
    linger_ms = 50  # sync: linger_ms = 2_000
    producer = StreamProducer(client, STREAM, linger_ms=linger_ms)
    raw.config_resetstat()
    await outcomes([start(producer.push, {"n": n}) for n in range(10)])
    assert calls(raw, "evalsha") <= 2


# async only
async def test_a_caller_that_is_cancelled_leaves_the_others_alone(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM)
    pushes = [start(producer.push, {"n": n}) for n in range(20)]
    await next_turn()
    for push in pushes[::2]:
        push.cancel()
    answers = await outcomes(pushes)
    ids = {entry_id.decode() for entry_id, _ in raw.xrange(STREAM)}
    assert set(answers[1::2]) <= ids
    assert len(set(answers[1::2])) == 10


def push_in_three_loops(url: str) -> None:
    client = StreamClient.from_url(url)
    producer = StreamProducer(client, STREAM)

    async def push(n: int) -> None:
        await producer.push({"n": n})
        await producer.push_many([{"n": n}, {"n": n}])

    async def push_and_close(n: int) -> None:
        await push(n)
        await client.close()

    asyncio.run(push(1))
    asyncio.run(push(2))
    asyncio.run(push_and_close(3))


# Whoever leaves a loop without closing is told so by asyncio.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_client_and_one_producer_serve_a_second_event_loop(redis_url: str, raw: redis.Redis) -> None:
    push_in_three_loops(redis_url)
    gc.collect()
    assert raw.xlen(STREAM) == 9


# end async only
