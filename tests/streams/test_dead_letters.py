"""A dead letter is a complete record, written in one step with the end of the message; a hook runs afterwards."""

from __future__ import annotations

import time

import pytest
import redis

from penstock import ConsumerGroup, DeadLetters, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.events import Event as Occurrence
from penstock.events import EventName
from tests.helpers.aio import eventually
from tests.streams.stage import (
    DEAD_LETTERS,
    GROUP,
    STREAM,
    Recorder,
    dead_letters,
    fail,
    of_kind,
    pending_ids,
    publish,
    quick,
    running,
)

pytestmark = pytest.mark.every_server


async def test_the_record_is_complete(client: StreamClient, raw: redis.Redis) -> None:
    entry_id = await StreamProducer(client, STREAM).push(
        {"n": 1}, message_id="m-1", key="customer-7", headers={"tenant": "ü"}
    )
    [(_, original)] = raw.xrange(STREAM)
    config = quick(worker_name="worker-1", max_deliveries=2)
    consumer = StreamConsumer(client, STREAM, config, Recorder(fail))
    before_ms = int(time.time() * 1000)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    [record] = dead_letters(raw)
    assert {name: value for name, value in record.items() if not name.startswith("dlq_")} == {
        name.decode(): value for name, value in original.items()
    }
    assert record.pop("dlq_traceback").endswith(b"ValueError: this cannot be handled\n")
    assert before_ms <= int(record.pop("dlq_time")) <= int(time.time() * 1000)
    assert {name: value for name, value in record.items() if name.startswith("dlq_")} == {
        "dlq_reason": b"max_deliveries",
        "dlq_source": STREAM.encode(),
        "dlq_id": entry_id.encode(),
        "dlq_group": GROUP.encode(),
        "dlq_consumer": b"worker-1",
        "dlq_error": b"ValueError",
        "dlq_error_text": b"this cannot be handled",
        "dlq_attempts": b"2",
        "dlq_deliveries": b"2",
    }
    [letter] = await DeadLetters(client, STREAM).list()
    assert (letter.source_stream, letter.source_id, letter.group) == (STREAM, entry_id, GROUP)
    assert (letter.consumer, letter.attempts, letter.deliveries) == ("worker-1", 2, 2)
    assert (letter.message_id, letter.data) == ("m-1", original[b"data"])
    assert pending_ids(raw) == []


@pytest.mark.parametrize("payload", [b"{not json", b"\xff\x00\xfe", b"", b'{"deep": ' * 2_000])
async def test_a_payload_that_cannot_be_decoded_is_kept_byte_by_byte(
    client: StreamClient, raw: redis.Redis, payload: bytes
) -> None:
    raw.xadd(STREAM, {"data": payload})
    await publish(client, [1])
    told: list[tuple[object, str]] = []

    async def hook(message: StreamMessage, reason: str) -> None:
        told.append((message.data, reason))

    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler, hook)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == consumer.metrics().total_acked == 1)
    [record] = dead_letters(raw)
    assert record["data"] == payload
    assert record["dlq_reason"] == b"decode_error"
    assert told == [(payload, "decode_error")]
    assert handler.seen == [1]  # its neighbour is none the worse
    assert pending_ids(raw) == []


async def test_a_foreign_entry_without_data_is_kept_with_its_fields(client: StreamClient, raw: redis.Redis) -> None:
    raw.xadd(STREAM, {"colour": "blue", "size": "7"})
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    [record] = dead_letters(raw)
    assert (record["colour"], record["size"]) == (b"blue", b"7")
    assert record["dlq_reason"] == b"decode_error"
    assert b"no field 'data'" in record["dlq_error_text"]
    assert "data" not in record


async def test_without_a_hook_the_record_is_written_all_the_same(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(5))
    events: list[Occurrence] = []
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail), on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 5)
    assert [record["data"] for record in dead_letters(raw)] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(of_kind(events, EventName.DEAD_LETTERED)) == 5
    assert pending_ids(raw) == []


async def test_the_hook_runs_when_the_record_is_there(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(3))
    seen: list[tuple[int, int, int, int]] = []

    def hook(message: StreamMessage, reason: str) -> None:
        seen.append((message.data, message.delivery_count, message.attempts, raw.xlen(DEAD_LETTERS)))

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), Recorder(fail), hook)
    async with running(consumer):
        await eventually(lambda: len(seen) == 3)
    assert min(seen)[:3] == (0, 2, 2)
    assert [records for *_, records in seen] == [1, 2, 3]


async def test_a_hook_that_fails_changes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(3))
    calls: list[int] = []

    async def hook(message: StreamMessage, reason: str) -> None:
        calls.append(message.data)
        raise RuntimeError("the hook is broken")

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail), hook)
    async with running(consumer):
        await eventually(lambda: len(calls) == 3)
        assert consumer.metrics().total_dlq == 3
    assert calls == [0, 1, 2]
    assert raw.xlen(DEAD_LETTERS) == 3
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_the_dead_letters_go_where_the_configuration_says(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(3))
    config = quick(max_deliveries=1, dlq_stream="graveyard", dlq_group="dead_letter_writers")
    consumer = StreamConsumer(client, STREAM, config, Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 3)
    assert raw.xlen("graveyard") == 3
    assert not raw.exists(DEAD_LETTERS)
    assert [info["name"] for info in raw.xinfo_groups("graveyard")] == [b"dead_letter_writers"]
    assert await DeadLetters(client, STREAM, "graveyard").count() == 3
    assert (await ConsumerGroup(client, STREAM, GROUP).stats("graveyard")).dlq_length == 3


@pytest.mark.usefixtures("default_server")
async def test_a_very_long_error_text_is_cut(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])

    def fail_at_length(messages: list[StreamMessage]) -> list[str]:
        raise ValueError("x" * 1_000_000)

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail_at_length))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert 100 < len(dead_letters(raw)[0]["dlq_error_text"]) < 10_000


@pytest.mark.usefixtures("default_server")
async def test_another_content_type_than_the_consumers_own_is_a_decode_error(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.xadd(STREAM, {"data": b"\x81\xa1n\x01", "message_id": "m", "content_type": "application/x-msgpack"})
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    [record] = dead_letters(raw)
    assert record["data"] == b"\x81\xa1n\x01"
    assert b"content type" in record["dlq_error_text"]
