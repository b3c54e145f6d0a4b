"""A full stream follows the policy that the producer names; nothing that a group still needs goes unasked."""

from __future__ import annotations

import json
import time

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamProducer
from penstock.errors import StreamFull
from penstock.events import Event, EventName
from tests.helpers.aio import eventually, is_done, join, start
from tests.helpers.commandstats import calls
from tests.streams.stage import GROUP, STREAM, Recorder, of_kind, quick, read_as, running

pytestmark = pytest.mark.every_server


def numbers(raw: redis.Redis) -> list[int]:
    return [json.loads(fields[b"data"])["n"] for _, fields in raw.xrange(STREAM)]


def items(*ns: int) -> list[dict[str, int]]:
    return [{"n": n} for n in ns]


SEQUENCES = [10**15, 2**53 - 2, 2**53, 2**63, 2**64 - 60]  # around what a double can hold, and before the last one


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
async def test_an_entry_with_a_great_id_makes_nothing_go_that_is_unread(
    client: StreamClient, raw: redis.Redis, sequence: int, on_full: str
) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=50, on_full=on_full)
    await producer.ensure_group()
    raw.xadd(STREAM, {"data": '{"n": -1}'}, id=f"{int(time.time() * 1000) + 86_400_000}-{sequence}")
    sent, read = 0, []
    for _ in range(15):
        await producer.push_many(items(*range(sent, sent + 8)))
        sent += 8
        [(_, rows)] = raw.xreadgroup(GROUP, "someone", {STREAM: ">"}, count=7)
        read += [json.loads(fields[b"data"])["n"] for _, fields in rows]
        raw.xack(STREAM, GROUP, *(entry_id for entry_id, _ in rows))
    while rows := raw.xreadgroup(GROUP, "someone", {STREAM: ">"}):
        read += [json.loads(fields[b"data"])["n"] for _, fields in rows[0][1]]
    assert read == [-1, *range(sent)]
    assert producer.metrics().total_dropped == 0


# --- reject ---------------------------------------------------------------------------------------


async def test_reject_refuses_what_does_not_fit_and_loses_nothing(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Event] = []
    producer = StreamProducer(client, STREAM, GROUP, max_len=10, on_event=events.append)
    await producer.ensure_group()
    await producer.push_many(items(*range(10)))
    with pytest.raises(StreamFull, match="max_len=10"):
        await producer.push({"n": 10})
    assert numbers(raw) == list(range(10))
    assert producer.metrics().total_pushed == 10
    assert producer.metrics().total_rejected == 1
    assert [event.fields["count"] for event in of_kind(events, EventName.REJECTED)] == [1]


async def test_push_many_names_what_still_found_room(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=10)
    await producer.ensure_group()
    await producer.push_many(items(*range(7)))
    with pytest.raises(StreamFull) as caught:
        await producer.push_many(items(*range(7, 15)))
    assert numbers(raw) == list(range(10))
    assert list(caught.value.ids) == [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)][7:]


async def test_acknowledged_history_makes_room(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=10)
    await producer.ensure_group()
    for start_at in range(0, 100, 10):
        await producer.push_many(items(*range(start_at, start_at + 10)))
        raw.xack(STREAM, GROUP, *read_as(raw, "someone"))
    assert raw.xlen(STREAM) == 10
    assert producer.metrics().total_pushed == 100


async def test_what_is_read_and_not_acknowledged_keeps_its_place(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=10)
    await producer.ensure_group()
    await producer.push_many(items(*range(10)))
    held = read_as(raw, "someone")
    raw.xack(STREAM, GROUP, *held[:4])
    await producer.push_many(items(*range(10, 14)))
    with pytest.raises(StreamFull):
        await producer.push({"n": 14})
    assert numbers(raw) == list(range(4, 14))


async def test_the_group_that_is_furthest_behind_decides(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=10)
    await producer.ensure_group()
    await producer.ensure_group("auditors")
    await producer.push_many(items(*range(10)))
    raw.xack(STREAM, GROUP, *read_as(raw, "someone"))
    with pytest.raises(StreamFull):
        await producer.push({"n": 10})
    assert numbers(raw) == list(range(10))


async def test_without_any_group_nothing_is_trimmed(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, max_len=10)
    await producer.push_many(items(*range(10)))
    with pytest.raises(StreamFull):
        await producer.push({"n": 10})
    assert numbers(raw) == list(range(10))


@pytest.mark.usefixtures("default_server")
async def test_without_a_limit_a_stream_is_never_full(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, max_len=None)
    await producer.push_many(items(*range(3_000)))
    assert raw.xlen(STREAM) == 3_000


# --- block ----------------------------------------------------------------------------------------


async def test_block_waits_until_a_consumer_acknowledges(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=10, on_full="block")
    await producer.ensure_group()
    await producer.push_many(items(*range(10)))
    attempts = calls(raw, "evalsha")
    blocked = start(producer.push, {"n": 10})
    await eventually(lambda: calls(raw, "evalsha") >= attempts + 3)
    assert not is_done(blocked)
    raw.xack(STREAM, GROUP, *read_as(raw, "someone"))
    assert await join(blocked) == raw.xrevrange(STREAM, count=1)[0][0].decode()


async def test_block_lets_many_more_through_than_fit_and_keeps_their_order(client: StreamClient) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=20, on_full="block", max_batch=50)
    await producer.ensure_group()
    handler = Recorder()
    async with running(StreamConsumer(client, STREAM, quick(), handler)):
        ids = await producer.push_many(range(300))
        await eventually(lambda: len(handler.seen) == 300)
    assert handler.seen == list(range(300))
    assert len(set(ids)) == 300


@pytest.mark.usefixtures("default_server")
async def test_block_gives_up_after_its_time_and_says_that_the_stream_is_full(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=2, on_full="block", block_timeout_ms=200)
    await producer.ensure_group()
    with pytest.raises(StreamFull) as caught:
        await producer.push_many(items(*range(5)))
    assert numbers(raw) == [0, 1]
    assert len(caught.value.ids) == 2


# --- drop_oldest ----------------------------------------------------------------------------------


async def test_drop_oldest_keeps_the_newest_and_counts_what_it_dropped(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Event] = []
    producer = StreamProducer(client, STREAM, GROUP, max_len=10, on_full="drop_oldest", on_event=events.append)
    await producer.ensure_group()
    await producer.push_many(items(*range(10)))
    await producer.push_many(items(*range(10, 14)))
    await producer.push({"n": 14})
    assert numbers(raw) == list(range(5, 15))
    assert producer.metrics().total_dropped == 5
    assert sum(int(str(event.fields["count"])) for event in of_kind(events, EventName.DROPPED)) == 5


@pytest.mark.usefixtures("default_server")
async def test_drop_oldest_does_not_count_history_that_every_group_was_done_with(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, GROUP, max_len=10, on_full="drop_oldest")
    await producer.ensure_group()
    await producer.push_many(items(*range(10)))
    raw.xack(STREAM, GROUP, *read_as(raw, "someone"))
    await producer.push_many(items(*range(10, 20)))
    assert numbers(raw) == list(range(10, 20))
    assert producer.metrics().total_dropped == 0
