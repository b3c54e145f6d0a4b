"""A consumer gets texts or bytes, as its client gives them."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

from penstock import RedisMessageQueue, StreamClient
from penstock.redis.embedded import EmbeddedServer
from tests.queue.stage import COMPLETED, DEAD_LETTERS, NAME, make_queue, payloads, take

NOT_UTF8 = b"caf\xe9 \xff\xfe"


def driver_of(server: EmbeddedServer, **options: Any) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(unix_socket_path=server.unix_socket, **options)


@pytest.mark.parametrize(("decodes", "expected"), [(True, "Zürich"), (False, "Zürich".encode())])
async def test_a_client_that_decodes_gets_texts_and_another_bytes(
    server: EmbeddedServer, decodes: bool, expected: Any
) -> None:
    async with driver_of(server, decode_responses=decodes) as driver:
        queue = RedisMessageQueue(NAME, client=driver)
        await queue.publish("Zürich")
        assert await take(queue) == expected
        await queue.publish({"city": "Zürich"})
        found = await take(queue)
        assert found == ('{"city": "Z\\u00fcrich"}' if decodes else b'{"city": "Z\\u00fcrich"}')
        assert await queue.publish("Zürich") is False


@pytest.mark.usefixtures("default_server")
async def test_bytes_are_the_default_of_redis_py(driver: redis.asyncio.Redis) -> None:
    queue = RedisMessageQueue(NAME, client=driver)
    await queue.publish("hello")
    assert await take(queue) == b"hello"


@pytest.mark.usefixtures("default_server")
async def test_a_stream_client_gives_texts(client: StreamClient) -> None:
    queue = RedisMessageQueue(NAME, client=client)
    await queue.publish("hello")
    assert await take(queue) == "hello"


@pytest.mark.parametrize("decodes", [True, False])
async def test_heartbeats_logs_and_looks_work_with_either_client(
    server: EmbeddedServer, raw: redis.Redis, decodes: bool
) -> None:
    expected: Any = "hello" if decodes else b"hello"
    async with driver_of(server, decode_responses=decodes) as driver:
        queue = RedisMessageQueue(
            NAME,
            client=driver,
            visibility_timeout_seconds=30,
            heartbeat_interval_seconds=5,
            enable_completed_queue=True,
        )
        await queue.publish("hello")
        assert await queue.peek() == [expected]
        async with queue.process_message() as message:
            assert message == expected
            assert await queue.peek(source="processing") == [expected]
        assert await queue.peek(source="completed") == [expected]
        await queue.close()
    assert payloads(raw, COMPLETED) == [b"hello"]


@pytest.mark.usefixtures("default_server")
async def test_a_client_that_does_not_decode_gets_any_bytes(driver: redis.asyncio.Redis, raw: redis.Redis) -> None:
    raw.xadd(NAME, {"data": NOT_UTF8})
    assert await take(make_queue(driver)) == NOT_UTF8


async def test_for_a_client_that_decodes_what_is_no_utf8_becomes_a_dead_letter_and_stops_nobody(
    client: StreamClient, raw: redis.Redis
) -> None:
    entry_id = raw.xadd(NAME, {"data": NOT_UTF8})
    queue = make_queue(client, message_wait_interval_seconds=60)
    await queue.publish("hello")
    assert await take(queue) == "hello"
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert (record[b"data"], record[b"dlq_reason"], record[b"dlq_id"]) == (NOT_UTF8, b"decode_error", entry_id)
    assert b"byte 3" in record[b"dlq_error_text"]
    assert b"decode_responses=False" in record[b"dlq_error_text"]


@pytest.mark.usefixtures("default_server")
async def test_a_look_shows_what_cannot_be_decoded_as_it_is(client: StreamClient, raw: redis.Redis) -> None:
    raw.xadd(NAME, {"data": NOT_UTF8})
    raw.xadd(NAME, {"data": "hello"})
    raw.xadd(NAME, {"something": "else"})
    assert await make_queue(client).peek(5) == [NOT_UTF8, "hello", ""]
