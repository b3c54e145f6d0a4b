"""Anybody may write anything to a stream: it ends in the dead letters, and its neighbours are handled."""

from __future__ import annotations

import pytest
import redis

from penstock import DeadLetters, StreamClient, StreamConsumer
from tests.helpers.aio import eventually
from tests.helpers.hostile import MANY_FIELDS, NO_NUMBERS, wide
from tests.streams.stage import DEAD_LETTERS, STREAM, Recorder, dead_letters, fail, pending_ids, publish, quick, running

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.mark.parametrize("count", MANY_FIELDS)
async def test_an_entry_of_very_many_fields_is_dead_lettered_and_redriven_with_what_matters(
    client: StreamClient, raw: redis.Redis, count: int
) -> None:
    raw.xadd(STREAM, wide(count, data="no json", message_id="m-1"))
    await publish(client, [1])
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == consumer.metrics().total_acked == 1)
    assert handler.seen == [1]
    assert pending_ids(raw) == []
    letters = DeadLetters(client, STREAM)
    [letter] = await letters.list()
    assert (letter.reason, letter.message_id, letter.data) == ("decode_error", "m-1", b"no json")
    assert (letter.fields["field-0"], letter.fields["field-1999"]) == (b"0", b"1999")
    left_out = [(f"field-{n}", str(n)) for n in range(2_000, count)]
    assert letter.cut == f"{len(left_out)} fields, {sum(len(a) + len(b) for a, b in left_out)} bytes"
    assert len(await letters.redrive()) == 1
    [(_, again)] = raw.xrevrange(STREAM, count=1)
    assert (again[b"data"], again[b"dlq_cut"], again[b"redrives"]) == (b"no json", letter.cut.encode(), b"1")
    assert not [name for name in again if name.startswith(b"dlq_") and name != b"dlq_cut"]


async def test_an_error_names_some_of_very_many_fields(client: StreamClient, raw: redis.Redis) -> None:
    raw.xadd(STREAM, wide(4_000))
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    [record] = dead_letters(raw)
    assert record["dlq_error_text"].startswith(
        b"the entry has no field 'data'; its fields are field-0, field-1, field-10,"
    )
    assert record["dlq_error_text"].endswith(b", ...")


async def test_a_record_of_very_many_fields_that_somebody_wrote_can_be_redriven(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.xadd(DEAD_LETTERS, wide(10_000, data="1", dlq_reason="fatal"))
    assert len(await DeadLetters(client, STREAM).redrive()) == 1
    [(_, again)] = raw.xrange(STREAM)
    assert again[b"data"] == b"1"
    assert again[b"dlq_cut"].startswith(b"8000 fields")


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
async def test_an_expiry_that_is_no_number_is_a_decode_error(
    client: StreamClient, raw: redis.Redis, value: str | bytes
) -> None:
    raw.xadd(STREAM, {"data": "1", "expires_at": value})
    await publish(client, [2])
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == consumer.metrics().total_acked == 1)
    assert handler.seen == [2]
    [record] = dead_letters(raw)
    assert record["dlq_reason"] == b"decode_error"
    assert b"expires_at" in record["dlq_error_text"]


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
async def test_numbers_of_a_record_that_are_none_count_as_nothing(
    client: StreamClient, raw: redis.Redis, value: str | bytes
) -> None:
    raw.xadd(DEAD_LETTERS, {"data": "1", "redrives": value, "dlq_attempts": value, "dlq_time": value})
    letters = DeadLetters(client, STREAM)
    [letter] = await letters.list()
    assert (letter.redrives, letter.attempts, letter.dead_at_ms) == (0, 0, 0)
    assert len(await letters.redrive()) == 1


async def test_names_of_fields_that_are_no_text_come_back_as_they_were(client: StreamClient, raw: redis.Redis) -> None:
    names = [b"\xff", rb"\xff", rb"\\xff", b"\\\xff", "ü".encode(), b"back\\slash"]
    raw.xadd(STREAM, {b"data": b"1", **{name: b"%d" % n for n, name in enumerate(names)}})
    handler = Recorder(fail)
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    letters = DeadLetters(client, STREAM)
    [letter] = await letters.list()
    assert letter.fields["ü"] == b"4"
    assert sorted(letter.fields[name] for name in letter.fields if "ff" in name) == [b"0", b"1", b"2", b"3"]
    await letters.redrive()
    [(_, again)] = raw.xrevrange(STREAM, count=1)
    assert [again[name] for name in names] == [b"%d" % n for n in range(len(names))]


async def test_the_end_of_the_traceback_is_kept(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    [letter] = await DeadLetters(client, STREAM).list()
    assert "in fail" in letter.traceback
    assert letter.traceback.endswith("ValueError: this cannot be handled\n")
