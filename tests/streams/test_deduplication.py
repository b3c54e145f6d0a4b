"""A dedup_key lets a message in once within its window, whoever publishes it and however often."""

from __future__ import annotations

import pytest
import redis

from penstock import StreamClient, StreamProducer
from penstock.errors import StreamFull
from penstock.events import Event as Occurrence
from penstock.events import EventName
from tests.helpers.aio import eventually, outcomes, start
from tests.streams.stage import STREAM

pytestmark = [pytest.mark.every_server, pytest.mark.acl(role="producer", dead_letters=())]


async def test_a_message_published_twice_under_one_key_is_in_the_stream_once(
    client: StreamClient, raw: redis.Redis
) -> None:
    events: list[Occurrence] = []
    producer = StreamProducer(client, STREAM, on_event=events.append)
    first = await producer.push({"n": 1}, dedup_key="order-1")
    second = await producer.push({"n": 1}, dedup_key="order-1")
    other = await producer.push({"n": 2}, dedup_key="order-2")
    assert first == second != other
    assert raw.xlen(STREAM) == 2
    metrics = producer.metrics()
    assert (metrics.total_pushed, metrics.total_duplicates, metrics.total_rejected) == (2, 1, 0)
    assert [(event.name, event.fields) for event in events] == [(EventName.DUPLICATE, {"count": 1})]


async def test_two_producers_at_once_add_one_entry_and_both_get_its_id(redis_url: str, raw: redis.Redis) -> None:
    async with StreamClient.from_url(redis_url) as one, StreamClient.from_url(redis_url) as other:
        producers = [StreamProducer(one, STREAM), StreamProducer(other, STREAM)]
        pushes = [start(producer.push, {"n": n}, dedup_key=f"order-{n}") for n in range(30) for producer in producers]
        ids = await outcomes(pushes)
    assert ids[::2] == ids[1::2]
    assert [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)] == sorted(set(ids), key=_numbers)
    assert raw.xlen(STREAM) == 30


async def test_duplicates_within_one_batch_are_found(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM)
    pushes = [start(producer.push, {"n": 1}, dedup_key="order-1") for _ in range(20)]
    assert len(set(await outcomes(pushes))) == 1
    assert raw.xlen(STREAM) == 1
    assert producer.metrics().total_duplicates == 19


@pytest.mark.usefixtures("default_server")
async def test_after_its_window_a_key_lets_a_message_in_again(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM)
    first = await producer.push({"n": 1}, dedup_key="order-1", dedup_window_ms=90_000)
    [marker] = raw.keys("*:dedup:*")
    assert 0 < raw.pttl(marker) <= 90_000
    raw.pexpire(marker, 1)  # its window is over now
    await eventually(lambda: not raw.exists(marker))
    assert await producer.push({"n": 1}, dedup_key="order-1", dedup_window_ms=90_000) != first
    assert raw.xlen(STREAM) == 2


@pytest.mark.usefixtures("default_server")
async def test_a_message_that_found_the_stream_full_leaves_no_mark(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, max_len=1)
    await producer.push({"n": 0})
    with pytest.raises(StreamFull):
        await producer.push({"n": 1}, dedup_key="order-1")
    raw.xtrim(STREAM, maxlen=0)
    assert await producer.push({"n": 1}, dedup_key="order-1")
    assert raw.xlen(STREAM) == 1


@pytest.mark.usefixtures("default_server")
async def test_a_duplicate_is_recognised_even_when_the_stream_is_full(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, max_len=1)
    first = await producer.push({"n": 1}, dedup_key="order-1")
    assert await producer.push({"n": 1}, dedup_key="order-1") == first


# --- keys that hold something else ----------------------------------------------------------------


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("text", [None, "1-2..3-4", "1-2 3-4", b"\xff"])
async def test_a_key_that_holds_something_else_lets_a_message_in_and_no_neighbour_fails(
    client: StreamClient, raw: redis.Redis, text: str | bytes | None
) -> None:
    producer = StreamProducer(client, STREAM)
    for key in ("alone", "together"):
        if text is None:
            raw.xadd(f"{{{STREAM}}}:dedup:{key}", {"a": "b"})
        else:
            raw.set(f"{{{STREAM}}}:dedup:{key}", text)
    alone = await producer.push(0, dedup_key="alone")
    pushes = [start(producer.push, n, dedup_key="together" if n == 2 else None) for n in range(1, 5)]
    ids = [alone, *await outcomes(pushes)]
    assert [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)] == ids
    assert await producer.push(0, dedup_key="alone") == alone
    assert await producer.push(2, dedup_key="together") == ids[2]


def _numbers(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))
