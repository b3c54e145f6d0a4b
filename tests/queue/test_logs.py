"""Completed and failed logs: what happened, no longer than asked for."""

from __future__ import annotations

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient
from penstock.events import Event, EventName
from tests.helpers.aio import outcomes, start
from tests.queue.stage import (
    COMPLETED,
    DEAD_LETTERS,
    FAILED,
    NAME,
    fail,
    in_flight,
    make_queue,
    of_kind,
    payloads,
    take,
)

pytestmark = pytest.mark.every_server


async def test_a_completed_message_is_recorded_as_it_was_published(client: StreamClient, raw: redis.Redis) -> None:
    queue = RedisMessageQueue(NAME, client=client, enable_completed_queue=True)
    await queue.publish({"b": 2, "a": 1})
    [(entry_id, fields)] = raw.xrange(NAME)
    async with queue.process_message():
        assert raw.xlen(COMPLETED) == 0, "not before it is done"
    [(_, record)] = raw.xrange(COMPLETED)
    assert {name: record[name] for name in fields} == fields
    assert (record[b"data"], record[b"log_id"], record[b"log_attempts"]) == (b'{"a": 1, "b": 2}', entry_id, b"1")
    assert b"log_error" not in record
    assert (raw.xlen(NAME), in_flight(raw)) == (0, [])


@pytest.mark.usefixtures("default_server")
async def test_a_message_with_thousands_of_fields_is_recorded_without_those_that_do_not_fit(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, enable_failed_queue=True)
    raw.xadd(NAME, {"data": "hello", **{f"field{n}": "x" for n in range(5_000)}})
    await fail(queue, ValueError("first"))
    [(_, record)] = raw.xrange(FAILED)
    assert (record[b"data"], record[b"log_error"]) == (b"hello", b"ValueError")
    assert record[b"dlq_cut"].startswith(b"3000 fields, ")


async def test_a_failed_message_is_not_recorded_as_completed(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, enable_completed_queue=True, max_delivery_count=1)
    await queue.publish("hello")
    await fail(queue)
    assert raw.exists(COMPLETED) == 0


async def test_every_failed_attempt_is_recorded_whatever_becomes_of_the_message(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, enable_failed_queue=True, enable_completed_queue=True, message_wait_interval_seconds=30)
    await queue.publish("hello")
    await fail(queue, ValueError("first"))
    await fail(queue, LookupError("second"))
    await take(queue)
    told = [(row[b"log_attempts"], row[b"log_error"], row[b"log_error_text"]) for _, row in raw.xrange(FAILED)]
    assert told == [(b"1", b"ValueError", b"first"), (b"2", b"LookupError", b"second")]
    [(_, record)] = raw.xrange(COMPLETED)
    assert record[b"log_attempts"] == b"3"


async def test_the_completed_log_keeps_the_newest_so_many(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, enable_completed_queue=True, max_completed_length=3)
    for n in range(10):
        await queue.publish(f"message {n}")
        await take(queue)
        assert raw.xlen(COMPLETED) == min(n + 1, 3)
    assert payloads(raw, COMPLETED) == [b"message 7", b"message 8", b"message 9"]


@pytest.mark.parametrize("policy", ["retry", "terminal"])
async def test_the_failed_log_keeps_the_newest_so_many(client: StreamClient, raw: redis.Redis, policy: str) -> None:
    queue = make_queue(client, enable_failed_queue=True, max_failed_length=3, on_failure=policy, max_delivery_count=1)
    for n in range(10):
        await queue.publish(f"message {n}")
        await fail(queue)
    assert payloads(raw, FAILED) == [b"message 7", b"message 8", b"message 9"]
    assert raw.xlen(DEAD_LETTERS) == (10 if policy == "retry" else 0), "dead letters have no such limit"


@pytest.mark.usefixtures("default_server")
async def test_a_thousand_records_are_the_default(client: StreamClient, raw: redis.Redis) -> None:
    with raw.pipeline() as adding:
        for n in range(1_200):
            adding.xadd(COMPLETED, {"data": str(n)})
            adding.xadd(FAILED, {"data": str(n)})
        adding.execute()
    queue = make_queue(client, enable_completed_queue=True, enable_failed_queue=True, max_delivery_count=1)
    await queue.publish("good")
    await take(queue)
    await queue.publish("bad")
    await fail(queue)
    assert (raw.xlen(COMPLETED), raw.xlen(FAILED)) == (1_000, 1_000)


@pytest.mark.usefixtures("default_server")
async def test_none_keeps_all(client: StreamClient, raw: redis.Redis) -> None:
    with raw.pipeline() as adding:
        for n in range(1_200):
            adding.xadd(COMPLETED, {"data": str(n)})
            adding.xadd(FAILED, {"data": str(n)})
        adding.execute()
    for policy in ("retry", "terminal"):
        queue = make_queue(
            client,
            enable_completed_queue=True, enable_failed_queue=True, max_completed_length=None, max_failed_length=None,
            on_failure=policy, max_delivery_count=1, deduplication=False,
        )  # fmt: skip
        await queue.publish("good")
        await take(queue)
        await queue.publish("bad")
        await fail(queue)
    assert (raw.xlen(COMPLETED), raw.xlen(FAILED)) == (1_202, 1_202)


async def test_consumers_side_by_side_keep_the_limit(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, enable_completed_queue=True, max_completed_length=5)
    for n in range(30):
        await queue.publish(f"message {n}")
    await outcomes([start(take, queue) for _ in range(30)])
    assert (raw.xlen(COMPLETED), raw.xlen(NAME)) == (5, 0)


async def test_a_completed_message_is_done_even_if_the_log_refuses_its_record(
    client: StreamClient, raw: redis.Redis
) -> None:
    events: list[Event] = []
    queue = make_queue(client, enable_completed_queue=True, on_event=events.append)
    raw.set(COMPLETED, "not a stream")
    await queue.publish("hello")
    await take(queue)
    assert (raw.xlen(NAME), in_flight(raw)) == (0, [])
    [event] = of_kind(events, EventName.UNLOGGED)
    assert event.fields["log"] == COMPLETED
    assert len(of_kind(events, EventName.COMPLETED)) == 1


@pytest.mark.usefixtures("default_server")
async def test_a_failed_message_is_tried_again_even_if_the_log_refuses_its_record(
    client: StreamClient, raw: redis.Redis
) -> None:
    events: list[Event] = []
    queue = make_queue(client, enable_failed_queue=True, on_event=events.append, message_wait_interval_seconds=30)
    raw.set(FAILED, "not a stream")
    await queue.publish("hello")
    await fail(queue)
    assert [event.fields["log"] for event in of_kind(events, EventName.UNLOGGED)] == [FAILED]
    assert await take(queue) == "hello"


async def test_at_most_once_writes_its_logs_too(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(
        client, message_visibility_timeout_seconds=None, enable_completed_queue=True, enable_failed_queue=True
    )
    await queue.publish("good")
    await queue.publish("bad")
    await take(queue)
    await fail(queue)
    assert (payloads(raw, COMPLETED), payloads(raw, FAILED)) == ([b"good"], [b"bad"])
