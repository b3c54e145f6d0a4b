"""Anybody may write anything to the stream of a queue: it ends in the dead letters, and what is behind it is handled."""

from __future__ import annotations

import pytest
import redis

from penstock import StreamClient
from penstock.errors import ConfigurationError, EncodeError, PayloadTooLarge
from penstock.queue.importer import StoredMessage
from tests.helpers.hostile import MANY_FIELDS, NO_NUMBERS, wide
from tests.queue.stage import COMPLETED, DEAD_LETTERS, NAME, make_queue, take, take_all

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.mark.parametrize("count", MANY_FIELDS)
async def test_a_message_of_very_many_fields_is_logged_dead_lettered_and_redriven_with_what_matters(
    client: StreamClient, raw: redis.Redis, count: int
) -> None:
    queue = make_queue(client, enable_completed_queue=True)
    raw.xadd(NAME, wide(count, data="wide", message_id="m-1"))
    await queue.publish("behind")
    assert await take_all(queue) == ["wide", "behind"]
    [(_, logged), _] = raw.xrange(COMPLETED)
    assert (logged[b"data"], logged[b"field-1999"], logged[b"log_attempts"]) == (b"wide", b"1999", b"1")
    assert logged[b"dlq_cut"].startswith(b"%d fields" % (count - 2_000))

    raw.xadd(NAME, wide(count, data=b"\xff"))  # which no client that decodes can be given
    assert await take(queue) is None
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert (record[b"data"], record[b"dlq_reason"]) == (b"\xff", b"decode_error")
    assert record[b"dlq_cut"].startswith(b"%d fields" % (count - 2_000))
    assert raw.xlen(NAME) == 0
    assert await queue.redrive_dead_letters() == 1
    assert raw.xlen(NAME) == 1


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
async def test_an_expiry_that_is_no_number_is_a_decode_error(
    client: StreamClient, raw: redis.Redis, value: str | bytes
) -> None:
    queue = make_queue(client)
    raw.xadd(NAME, {"data": "1", "expires_at": value})
    await queue.publish("behind")
    assert [await take(queue), await take(queue)] == [None, "behind"]  # a queue that waits for nothing gives up once
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert record[b"dlq_reason"] == b"decode_error"
    assert b"expires_at" in record[b"dlq_error_text"]


async def test_a_message_beyond_the_limit_is_refused_and_one_that_arrives_is_a_dead_letter(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, max_payload_bytes=100)
    assert await queue.publish("ü" * 50)
    with pytest.raises(PayloadTooLarge, match="102 bytes, more than max_payload_bytes=100"):
        await queue.publish("ü" * 51)
    raw.xadd(NAME, {"data": "x" * 101})
    await queue.publish("behind")
    assert [await take(queue), await take(queue), await take(queue)] == ["ü" * 50, None, "behind"]
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert (record[b"data"], record[b"dlq_reason"]) == (b"x" * 101, b"decode_error")
    assert b"max_payload_bytes" in record[b"dlq_error_text"]


async def test_a_dict_may_be_nested_up_to_the_limit(client: StreamClient) -> None:
    queue = make_queue(client, max_payload_depth=200)
    deep: dict[str, object] = {}
    for _ in range(199):
        deep = {"a": deep}
    assert await queue.publish(deep)
    with pytest.raises(EncodeError, match="max_payload_depth=200"):
        await queue.publish({"a": deep})


def test_a_stored_message_of_the_old_library_that_is_nested_without_end_is_a_payload() -> None:
    stored = b"\x1eRMQ1:" + b'{"a":' * 100_000
    assert StoredMessage.of(stored) == StoredMessage(stored, None)


async def test_the_limit_is_that_of_streams_unless_it_is_given(client: StreamClient) -> None:
    queue = make_queue(client)
    assert await queue.publish("x" * 1_048_576)
    with pytest.raises(PayloadTooLarge, match="max_payload_bytes=1048576"):
        await queue.publish("x" * 1_048_577)
    with pytest.raises(ConfigurationError, match="max_payload_bytes"):
        make_queue(client, max_payload_bytes=0)
