"""A producer adds each message once, in order, with everything that the caller says about it."""

from __future__ import annotations

import json
import time

import pytest
import redis

from penstock import JsonSerializer, MsgpackSerializer, StreamClient, StreamProducer
from penstock.errors import ConfigurationError, EncodeError, PayloadTooLarge, WrongType
from tests.helpers.aio import outcomes, start
from tests.helpers.commandstats import calls
from tests.streams.stage import STREAM

pytestmark = pytest.mark.acl(role="producer", dead_letters=())


def entries(raw: redis.Redis) -> list[tuple[str, dict[bytes, bytes]]]:
    return [(entry_id.decode(), fields) for entry_id, fields in raw.xrange(STREAM)]


async def test_messages_are_in_the_stream_in_the_order_in_which_they_were_pushed(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM)
    ids = [await producer.push({"n": n}) for n in range(20)]
    assert [entry_id for entry_id, _ in entries(raw)] == ids
    assert [json.loads(fields[b"data"])["n"] for _, fields in entries(raw)] == list(range(20))


async def test_the_ids_of_push_many_are_those_of_its_items_in_order(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, max_batch=7)
    ids = await producer.push_many({"n": n} for n in range(100))
    assert [entry_id for entry_id, _ in entries(raw)] == ids
    assert [json.loads(fields[b"data"])["n"] for _, fields in entries(raw)] == list(range(100))


@pytest.mark.usefixtures("default_server")
async def test_pushing_nothing_sends_nothing(client: StreamClient, raw: redis.Redis) -> None:
    assert await StreamProducer(client, STREAM).push_many([]) == []
    assert not raw.exists(STREAM)


@pytest.mark.usefixtures("default_server")
async def test_one_item_that_cannot_be_encoded_leaves_the_stream_as_it_was(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, max_batch=2)
    with pytest.raises(EncodeError):
        await producer.push_many([{"n": 1}, {"n": 2}, {"n": 3}, {"n": object()}])
    assert not raw.exists(STREAM)
    assert producer.metrics().total_pushed == 0


@pytest.mark.usefixtures("default_server")
async def test_a_payload_beyond_the_limit_of_the_serializer_is_not_sent(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, serializer=JsonSerializer(max_bytes=100))
    with pytest.raises(PayloadTooLarge):
        await producer.push({"text": "x" * 200})
    assert not raw.exists(STREAM)


async def test_concurrent_pushes_travel_together(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM)
    await producer.push({"n": -1})  # the connection is there, the script is known
    raw.config_resetstat()
    raw.client_pause(300)  # so that the first waits for its answer while others come
    pushes = [start(producer.push, {"n": n}) for n in range(50)]
    ids = await outcomes(pushes)
    by_id = {entry_id: json.loads(fields[b"data"])["n"] for entry_id, fields in entries(raw)}
    assert [by_id[entry_id] for entry_id in ids] == list(range(50))
    assert calls(raw, "evalsha") < 50
    # async only
    assert calls(raw, "evalsha") <= 2  # whatever is pushed in one turn of the event loop
    # end async only


@pytest.mark.usefixtures("default_server")
async def test_each_of_many_concurrent_callers_gets_its_own_id_or_its_own_error(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, max_len=25)
    pushes = [start(producer.push, {"n": n}) for n in range(50)]
    answers = await outcomes(pushes)
    by_id = {entry_id: json.loads(fields[b"data"])["n"] for entry_id, fields in entries(raw)}
    accepted = [n for n, answer in enumerate(answers) if isinstance(answer, str)]
    errors = [answer for answer in answers if not isinstance(answer, str)]
    assert [by_id[answers[n]] for n in accepted] == accepted
    assert len(by_id) == len(accepted) == 25
    assert len({id(error) for error in errors}) == 25


@pytest.mark.usefixtures("default_server")
async def test_an_error_of_the_server_reaches_every_caller_as_an_error_of_its_own(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.set(STREAM, "not a stream")
    producer = StreamProducer(client, STREAM)
    pushes = [start(producer.push, {"n": n}) for n in range(10)]
    errors = await outcomes(pushes)
    assert all(isinstance(error, WrongType) for error in errors)
    assert len({id(error) for error in errors}) == 10


async def test_what_the_caller_says_about_a_message_stands_beside_its_payload(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM)
    before_ms = int(time.time() * 1000)
    await producer.push(
        {"n": 1}, message_id="m-1", key="customer-7", headers={"tenant": "ü"}, dedup_key="d", expires_in_ms=60_000
    )
    after_ms = int(time.time() * 1000)
    [(_, fields)] = entries(raw)
    assert json.loads(fields[b"data"]) == {"n": 1}
    assert fields[b"message_id"] == b"m-1"
    assert fields[b"key"] == b"customer-7"
    assert json.loads(fields[b"headers"]) == {"tenant": "ü"}
    assert before_ms + 60_000 <= int(fields[b"expires_at"]) <= after_ms + 60_000
    assert fields[b"dedup_key"] == b"d"  # so that whoever buries the message can free the key
    assert set(fields) == {b"data", b"message_id", b"key", b"headers", b"expires_at", b"dedup_key"}


@pytest.mark.usefixtures("default_server")
async def test_a_message_without_a_message_id_gets_one_that_no_other_has(
    client: StreamClient, raw: redis.Redis
) -> None:
    producers = [StreamProducer(client, STREAM) for _ in range(2)]
    for producer in producers:
        await producer.push_many([{"n": n} for n in range(50)])
    assert len({fields[b"message_id"] for _, fields in entries(raw)}) == 100


@pytest.mark.usefixtures("default_server")
async def test_a_payload_that_is_not_json_is_marked_as_what_it_is(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, serializer=MsgpackSerializer())
    await producer.push({"n": 1})
    [(_, fields)] = entries(raw)
    assert fields[b"content_type"] == MsgpackSerializer.content_type.encode()


@pytest.mark.usefixtures("default_server")
@pytest.mark.acl(prefix=("shop",))
async def test_the_prefix_of_the_client_is_part_of_the_key(redis_url: str, raw: redis.Redis) -> None:
    async with StreamClient.from_url(redis_url, prefix="shop") as client:
        await StreamProducer(client, STREAM).push({"n": 1})
    assert raw.xlen("shop_orders") == 1


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"message_id": 5},
        {"dedup_key": "x" * 600},
        {"expires_in_ms": 0},
        {"dedup_key": "k", "dedup_window_ms": -1},
        {"headers": {"n": 1}},
    ],
)
async def test_an_option_that_cannot_work_is_refused_by_name(
    client: StreamClient, raw: redis.Redis, options: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError):
        await StreamProducer(client, STREAM).push({"n": 1}, **options)
    assert not raw.exists(STREAM)


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    "settings",
    [{"on_full": "explode"}, {"durability": "eternal"}, {"max_len": 0}, {"max_batch": 0}, {"retry_budget_ms": -1}],
)
async def test_a_setting_of_the_producer_that_cannot_work_is_refused_by_name(
    client: StreamClient, settings: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        StreamProducer(client, STREAM, **settings)
