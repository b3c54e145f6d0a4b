"""Dead letters can be listed, put back into their stream and purged; none of it loses or doubles one."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
import redis

from penstock import DeadLetters, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.errors import ConfigurationError, FatalError, WrongType
from tests.helpers.aio import eventually, outcomes, start
from tests.helpers.commandstats import calls
from tests.streams.stage import DEAD_LETTERS, GROUP, STREAM, Recorder, expire, fail, publish, quick, read_as, running

pytestmark = pytest.mark.every_server


async def dead_letter(client: StreamClient, count: int) -> list[str]:
    """Publishes messages and lets them fail; even ones are fatal. Returns the ids of the records, oldest first."""
    await publish(client, range(count))

    def handle(message: StreamMessage) -> None:
        raise FatalError("never") if message.data % 2 == 0 else ValueError("not now")

    config = quick(max_deliveries=1, concurrency=1)
    consumer = StreamConsumer(client, STREAM, config, message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == count)
    return [letter.id for letter in await DeadLetters(client, STREAM).list(count)]


def numbers(raw: redis.Redis, key: str) -> list[int]:
    return [json.loads(fields[b"data"]) for _, fields in raw.xrange(key)]


# --- looking --------------------------------------------------------------------------------------


async def test_dead_letters_are_listed_oldest_first_and_by_reason(client: StreamClient) -> None:
    ids = await dead_letter(client, 10)
    letters = DeadLetters(client, STREAM)
    assert await letters.count() == 10
    assert [json.loads(letter.data or b"") for letter in await letters.list()] == list(range(10))
    assert [letter.id for letter in await letters.list(3, start=ids[4])] == ids[4:7]
    assert [letter.id for letter in await letters.list(reason="fatal")] == ids[::2]
    assert [letter.id for letter in await letters.list(2, reason="max_deliveries")] == ids[1:4:2]
    assert await letters.list(reason="expired") == []


@pytest.mark.usefixtures("default_server")
async def test_a_stream_without_dead_letters_has_none(client: StreamClient) -> None:
    letters = DeadLetters(client, STREAM)
    assert (await letters.count(), await letters.list(), await letters.redrive(), await letters.purge()) == (
        0,
        [],
        [],
        0,
    )


@pytest.mark.usefixtures("default_server")
async def test_more_dead_letters_than_one_page_holds_are_all_found(client: StreamClient, raw: redis.Redis) -> None:
    with raw.pipeline() as adding:
        for n in range(1_200):
            adding.xadd(DEAD_LETTERS, {"data": str(n), "dlq_reason": "fatal" if n % 100 == 0 else "expired"})
        adding.execute()
    letters = DeadLetters(client, STREAM)
    assert len(await letters.list(2_000)) == 1_200
    assert len(await letters.list(2_000, reason="fatal")) == 12


# --- putting back ---------------------------------------------------------------------------------


async def test_a_redriven_message_is_handled_like_a_new_one_and_keeps_its_origin(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM)
    entry_id = await producer.push({"n": 1}, message_id="m-1", key="customer-7", headers={"tenant": "a"})
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    letters = DeadLetters(client, STREAM)
    [new_id] = await letters.redrive()
    assert await letters.count() == 0
    got: list[StreamMessage] = []
    second = StreamConsumer(client, STREAM, quick(), message_handler=got.append)
    async with running(second):
        await eventually(lambda: second.metrics().total_acked == 1)
    [message] = got
    assert (message.id, message.data, message.attempts, message.delivery_count) == (new_id, {"n": 1}, 1, 1)
    assert (message.message_id, message.key, message.headers) == ("m-1", "customer-7", {"tenant": "a"})
    assert message.fields is not None
    assert message.fields["origin"] == f"{STREAM}/{entry_id}".encode()
    assert message.fields["redrives"] == b"1"
    assert not [name for name in message.fields if name.startswith("dlq_")]


async def test_a_message_that_only_comes_back_is_redriven_so_often_and_no_more(
    client: StreamClient, raw: redis.Redis
) -> None:
    [entry_id] = await publish(client, [1])
    letters = DeadLetters(client, STREAM)
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail))
    redriven = 0
    async with running(consumer):
        for turn in range(5):
            await eventually(lambda: raw.xlen(DEAD_LETTERS) == 1)
            [letter] = await letters.list()
            assert letter.redrives == min(turn, 3)
            redriven += len(await letters.redrive())
    assert redriven == 3
    [letter] = await letters.list()
    assert letter.fields["origin"] == f"{STREAM}/{entry_id}".encode()
    assert await letters.redrive(max_redrives=4)
    with pytest.raises(ConfigurationError):
        await letters.redrive(max_redrives=0)


@pytest.mark.usefixtures("default_server")
async def test_some_can_be_chosen_by_id_by_reason_and_by_number(client: StreamClient, raw: redis.Redis) -> None:
    ids = await dead_letter(client, 10)
    raw.xtrim(STREAM, maxlen=0)
    letters = DeadLetters(client, STREAM)
    await letters.redrive([ids[3], ids[4], "1-1"])
    assert numbers(raw, STREAM) == [3, 4]
    await letters.redrive(reason="fatal", limit=2)
    assert numbers(raw, STREAM) == [3, 4, 0, 2]
    await letters.redrive(limit=1)
    assert numbers(raw, STREAM) == [3, 4, 0, 2, 1]
    assert await letters.redrive([]) == []
    assert numbers(raw, DEAD_LETTERS) == [5, 6, 7, 8, 9]


@pytest.mark.usefixtures("default_server")
async def test_one_can_be_read_by_its_id(client: StreamClient) -> None:
    ids = await dead_letter(client, 2)
    letters = DeadLetters(client, STREAM)
    assert [await letters.record(record_id) for record_id in ids] == await letters.list()
    assert [await letters.record(strange) for strange in ("1-1", "1", "-", "no id")] == [None] * 4


async def test_two_operators_who_redrive_at_once_put_each_back_once(client: StreamClient, raw: redis.Redis) -> None:
    await dead_letter(client, 30)
    raw.xtrim(STREAM, maxlen=0)
    letters = DeadLetters(client, STREAM)
    added = await outcomes([start(letters.redrive) for _ in range(3)])
    assert sum(len(ids) for ids in added) == 30
    assert sorted(numbers(raw, STREAM)) == list(range(30))
    assert raw.xlen(DEAD_LETTERS) == 0


@pytest.mark.usefixtures("default_server")
async def test_a_record_without_a_payload_stays(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    raw.xgroup_create(STREAM, GROUP, "0")
    ids = read_as(raw, "dead")
    expire(raw)
    raw.xdel(STREAM, *ids)
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_missing == 1)
    letters = DeadLetters(client, STREAM)
    assert await letters.redrive() == []
    assert await letters.count() == 1


@pytest.mark.usefixtures("default_server")
async def test_when_the_stream_refuses_the_record_stays(client: StreamClient, raw: redis.Redis) -> None:
    await dead_letter(client, 2)
    raw.delete(STREAM)
    raw.set(STREAM, "not a stream")
    with pytest.raises(WrongType):
        await DeadLetters(client, STREAM).redrive()
    assert raw.xlen(DEAD_LETTERS) == 2


# --- throwing away --------------------------------------------------------------------------------


async def test_purging_deletes_the_given_ones_or_all(client: StreamClient, raw: redis.Redis) -> None:
    ids = await dead_letter(client, 6)
    letters = DeadLetters(client, STREAM)
    assert await letters.purge({ids[0], ids[5], "1-1"}) == 2  # type: ignore[arg-type]
    assert numbers(raw, DEAD_LETTERS) == [1, 2, 3, 4]
    assert await letters.purge([]) == 0
    assert await letters.purge() == 4
    assert await letters.count() == 0


# --- many -----------------------------------------------------------------------------------------


def add_letters(raw: redis.Redis, count: int, data: str = "1") -> list[str]:
    with raw.pipeline() as adding:
        for _ in range(count):
            adding.xadd(DEAD_LETTERS, {"data": data, "dlq_reason": "fatal", "dlq_source": STREAM, "dlq_id": "1-1"})
        return [entry_id.decode() for entry_id in adding.execute()]


@pytest.mark.usefixtures("default_server")
async def test_one_of_many_is_put_back_without_reading_the_others(client: StreamClient, raw: redis.Redis) -> None:
    ids = add_letters(raw, 5_000)
    letters = DeadLetters(client, STREAM)
    await letters.redrive(limit=1)  # the script is known from here on
    for choice in ({"limit": 1}, {"ids": [ids[-1]]}):
        before = calls(raw, "xrange")
        assert len(await letters.redrive(**choice)) == 1
        assert calls(raw, "xrange") - before == 2  # one by the client, one by the script
    assert raw.xlen(DEAD_LETTERS) == 4_997
    assert not raw.xrange(DEAD_LETTERS, ids[-1], ids[-1])


@pytest.mark.usefixtures("default_server")
async def test_large_dead_letters_are_put_back_a_few_at_a_time(client: StreamClient, raw: redis.Redis) -> None:
    add_letters(raw, 10)
    add_letters(raw, 100, "x" * 300_000)
    letters = DeadLetters(client, STREAM)
    tracemalloc.start()
    try:
        assert len(await letters.redrive()) == 110
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("default_server")
async def test_what_dies_again_meanwhile_is_left_for_the_next_time(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add_letters(raw, 300)
    really = client.run

    async def run(*args: Any) -> Any:
        answer = await really(*args)
        add_letters(raw, 1)
        return answer

    monkeypatch.setattr(client, "run", run)
    assert len(await DeadLetters(client, STREAM).redrive()) == 300
    assert raw.xlen(DEAD_LETTERS) == 300
    assert raw.xrange(DEAD_LETTERS, "-", ids[-1]) == []


@pytest.mark.usefixtures("default_server")
async def test_ids_that_are_none_or_of_no_record_are_passed_over(client: StreamClient, raw: redis.Redis) -> None:
    (record,) = add_letters(raw, 1)
    letters = DeadLetters(client, STREAM)
    assert await letters.redrive(["no id", "1-1", record.partition("-")[0]]) == []
    assert len(await letters.redrive([record, "1-1", record])) == 1


@pytest.mark.usefixtures("default_server")
async def test_a_record_with_the_last_of_all_ids_is_the_end(client: StreamClient, raw: redis.Redis) -> None:
    raw.execute_command("XADD", DEAD_LETTERS, "1-1", "data", "1")
    for number in range(14):
        raw.execute_command("XADD", DEAD_LETTERS, f"2-{number}", "data", "1")
    raw.execute_command("XADD", DEAD_LETTERS, f"{2**64 - 1}-{2**64 - 1}", "data", "1")
    letters = DeadLetters(client, STREAM)
    assert len(await letters.list(500)) == 16
    assert len(await letters.redrive()) == 16


@pytest.mark.usefixtures("default_server")
async def test_no_script_purges_more_than_a_few_large_records(client: StreamClient, raw: redis.Redis) -> None:
    for _ in range(40):
        raw.xadd(DEAD_LETTERS, {"data": "x" * 300_000})
    raw.xadd(DEAD_LETTERS, {"data": "the greatest id of all"}, id=f"{2**64 - 1}-{2**64 - 1}")
    before = calls(raw, "evalsha") + calls(raw, "eval")
    assert await DeadLetters(client, STREAM).purge() == 41
    assert raw.xlen(DEAD_LETTERS) == 0
    assert calls(raw, "evalsha") + calls(raw, "eval") - before >= 3
