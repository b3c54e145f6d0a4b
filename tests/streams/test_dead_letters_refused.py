"""When the dead letter cannot be written, the message stays; when the entry is gone, the record says so."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import DeadLetters, StreamClient, StreamConsumer, StreamMessage
from penstock.errors import RetryLater, WrongType
from penstock.events import Event as Occurrence
from penstock.events import EventName
from tests.helpers.aio import Event, eventually, join, start, wait_for
from tests.streams.stage import (
    DEAD_LETTERS,
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    dead_letters,
    expire,
    fail,
    of_kind,
    pending_ids,
    publish,
    quick,
    read_as,
    recoveries,
    running,
)


async def test_a_dead_letter_stream_of_the_wrong_type_stops_the_consumer_and_the_message_stays_pending(
    client: StreamClient, raw: redis.Redis
) -> None:
    ids = await publish(client, [1])
    raw.set(DEAD_LETTERS, "not a stream")
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail))
    with pytest.raises(WrongType):
        await join(start(consumer.run))
    assert pending_ids(raw) == ids
    raw.delete(DEAD_LETTERS)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert dead_letters(raw)[0]["data"] == b"1"
    assert pending_ids(raw) == []


async def test_the_same_holds_for_a_message_that_cannot_be_decoded(client: StreamClient, raw: redis.Redis) -> None:
    entry_id = raw.xadd(STREAM, {"data": b"{not json"}).decode()
    raw.set(DEAD_LETTERS, "not a stream")
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    with pytest.raises(WrongType):
        await join(start(consumer.run))
    assert pending_ids(raw) == [entry_id]
    raw.delete(DEAD_LETTERS)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert dead_letters(raw)[0]["data"] == b"{not json"


# --- errors of one message ------------------------------------------------------------------------

LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


@pytest.mark.usefixtures("default_server")
async def test_a_dead_letter_that_the_server_refuses_stops_no_neighbour_and_is_tried_again(
    client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.xadd(DEAD_LETTERS, {"junk": "1"}, id=LAST_ID)  # nothing can be added behind it
    malformed = raw.xadd(STREAM, {"data": b"{not json"}).decode()
    ids = await publish(client, range(5))
    handler = Recorder(lambda messages: [m.id for m in messages if m.data != 2])
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1, batch_size=1), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
        await eventually(lambda: len([r for r in caplog.records if "cannot dead-letter entry" in r.getMessage()]) >= 2)
        assert pending_ids(raw) == [malformed, ids[2]]
        raw.delete(DEAD_LETTERS)
        await eventually(lambda: consumer.metrics().total_dlq == 2)
    assert handler.runs == dict.fromkeys(range(5), 1)
    assert sorted(letter["dlq_id"].decode() for letter in dead_letters(raw)) == [malformed, ids[2]]
    assert pending_ids(raw) == []
    refusals = [record for record in caplog.records if "cannot dead-letter entry" in record.getMessage()]
    assert all(record.exc_info for record in refusals if record.levelname == "ERROR")


@pytest.mark.usefixtures("default_server")
async def test_an_entry_with_thousands_of_fields_is_dead_lettered_too(client: StreamClient, raw: redis.Redis) -> None:
    wide = {f"field{n}": "x" for n in range(9_000)}
    raw.xadd(STREAM, {"data": "{not json", **wide})
    await publish(client, range(3))
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 3 and consumer.metrics().total_dlq == 1)
    [letter] = dead_letters(raw)
    assert letter["data"] == b"{not json"
    assert letter["dlq_reason"] in {b"refused", b"decode_error"}
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_an_entry_whose_deduplication_key_is_no_text_is_dead_lettered_and_the_key_stays(
    client: StreamClient, raw: redis.Redis
) -> None:
    # A producer may write both.
    key = f"{{{STREAM}}}:dedup:x"
    raw.xadd(key, {"a": "b"})
    raw.xadd(STREAM, {"data": "{not json", "dedup_key": "x"})
    raw.xadd(STREAM, {"data": "1", "dedup_key": "x"})
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 2)
    assert sorted(letter["data"] for letter in dead_letters(raw)) == [b"1", b"{not json"]
    assert (pending_ids(raw), raw.xlen(key)) == ([], 1)


class Forgetful(RetryLater):
    """A mistake that is easily made: the delay of the parent is not set."""

    def __init__(self) -> None:
        pass


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    "oddity", [lambda _: [["no", "id"], {}, 7], lambda _: forget()], ids=["unhashable", "no delay"]
)
async def test_whatever_a_handler_does_to_its_verdict_is_a_failed_attempt(
    client: StreamClient, raw: redis.Redis, oddity: Any
) -> None:
    await publish(client, range(2))
    handler = Recorder(lambda messages: oddity(messages) if messages[0].data == 0 else all_ids(messages))
    consumer = StreamConsumer(client, STREAM, quick(batch_size=1), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1 and consumer.metrics().total_dlq == 1)
    assert handler.runs == {0: 3, 1: 1}


def forget() -> None:
    raise Forgetful


# --- a server without memory ----------------------------------------------------------------------


async def test_a_server_without_memory_delays_the_burial_and_loses_nothing(
    client: StreamClient, raw: redis.Redis
) -> None:
    ids = await publish(client, range(3))
    handler = Recorder(fail)
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), handler)
    raw.xgroup_create(STREAM, GROUP, "0")
    raw.config_set("maxmemory", 1)
    async with running(consumer):
        await eventually(lambda: len(handler.seen) >= 3)
        await eventually(lambda: consumer.metrics().total_retried >= 3)
        assert pending_ids(raw) == ids
        assert not raw.exists(DEAD_LETTERS)
        raw.config_set("maxmemory", 0)
        await eventually(lambda: consumer.metrics().total_dlq == 3)
    assert sorted(record["data"] for record in dead_letters(raw)) == [b"0", b"1", b"2"]
    assert {record["dlq_reason"] for record in dead_letters(raw)} == {b"max_deliveries"}
    assert pending_ids(raw) == []
    assert handler.runs == {0: 1, 1: 1, 2: 1}


async def test_a_server_without_memory_delays_the_burial_of_what_cannot_be_decoded_too(
    client: StreamClient, raw: redis.Redis
) -> None:
    entry_id = raw.xadd(STREAM, {"data": b"{not json"}).decode()
    raw.xgroup_create(STREAM, GROUP, "0")
    raw.config_set("maxmemory", 1)
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_read == 1)
        assert pending_ids(raw) == [entry_id]
        raw.config_set("maxmemory", 0)
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert pending_ids(raw) == []


# --- entries that are gone ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["XDEL", "XTRIM"])
async def test_entries_of_a_dead_consumer_that_are_gone_are_recorded_and_leave_the_pending_list(
    client: StreamClient, raw: redis.Redis, how: str
) -> None:
    await publish(client, range(10))
    raw.xgroup_create(STREAM, GROUP, "0")
    ids = read_as(raw, "dead")
    expire(raw)
    gone = ids[:4] if how == "XTRIM" else ids[::3]
    raw.xtrim(STREAM, maxlen=6, approximate=False) if how == "XTRIM" else raw.xdel(STREAM, *gone)
    events: list[Occurrence] = []
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_missing == 4 and consumer.metrics().total_acked == 6)
    assert sorted(handler.seen) == [n for n in range(10) if ids[n] not in gone]
    letters = await DeadLetters(client, STREAM).list(reason="missing")
    assert sorted(letter.source_id for letter in letters) == sorted(gone)
    assert {(letter.consumer, letter.deliveries, letter.data) for letter in letters} == {("dead", 1, None)}
    assert consumer.metrics().total_dlq == 4
    told = [entry_id for event in of_kind(events, EventName.MISSING) for entry_id in event.fields["ids"]]
    assert sorted(told) == sorted(gone)
    assert pending_ids(raw) == []


async def test_a_message_that_is_deleted_while_it_waits_for_its_retry_is_recorded(
    client: StreamClient, raw: redis.Redis
) -> None:
    ids = await publish(client, range(2))
    consumer = StreamConsumer(client, STREAM, quick(retry_initial_delay_ms=200, retry_max_delay_ms=200), Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_retried == 2)
        raw.xdel(STREAM, *ids)
        await eventually(lambda: consumer.metrics().total_missing == 2)
    assert pending_ids(raw) == []
    assert {letter.reason for letter in await DeadLetters(client, STREAM).list()} == {"missing"}
    assert not raw.exists(f"{{{STREAM}}}:attempts:{GROUP}", f"{{{STREAM}}}:retries:{GROUP}")


async def test_a_message_that_is_deleted_while_its_handler_runs_ends_as_the_handler_says(
    client: StreamClient, raw: redis.Redis
) -> None:
    ids = await publish(client, range(2))
    began, go_on = Event(), Event()

    async def handler(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await wait_for(go_on)
        return all_ids(messages)[:1]

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), handler)
    async with running(consumer):
        await wait_for(began)
        raw.xdel(STREAM, *ids)
        go_on.set()
        await eventually(lambda: consumer.metrics().total_acked == consumer.metrics().total_dlq == 1)
    [letter] = await DeadLetters(client, STREAM).list()
    assert (letter.reason, letter.source_id) == ("missing", ids[1])
    assert pending_ids(raw) == []


async def test_an_entry_that_is_gone_stays_pending_while_the_record_cannot_be_written(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(3))
    raw.xgroup_create(STREAM, GROUP, "0")
    ids = read_as(raw, "dead")
    expire(raw)
    raw.xdel(STREAM, *ids)
    raw.config_set("maxmemory", 1)
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer._is_open)
        await recoveries(raw)
        assert pending_ids(raw) == ids
        raw.config_set("maxmemory", 0)
        await eventually(lambda: consumer.metrics().total_missing == 3)
    assert pending_ids(raw) == []
