"""A message is handed to one consumer at a time, and is gone when its body ends without an exception."""

from __future__ import annotations

import json

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient, StreamProducer
from penstock.runtime.aio import Cancelled
from tests.helpers.aio import Event, eventually, is_done, join, outcomes, start, wait_for
from tests.queue.stage import (
    COMPLETED,
    DEAD_LETTERS,
    FAILED,
    NAME,
    fail,
    in_flight,
    make_queue,
    payloads,
    take,
)


async def test_an_empty_queue_gives_none_and_the_body_runs_all_the_same(client: StreamClient) -> None:
    queue = make_queue(client)
    bodies = []
    async with queue.process_message() as message:
        bodies.append(message)
    assert bodies == [None]


@pytest.mark.usefixtures("default_server")
async def test_an_exception_in_a_body_without_a_message_is_just_raised(client: StreamClient) -> None:
    with pytest.raises(ValueError, match="nothing to do"):
        async with make_queue(client).process_message():
            raise ValueError("nothing to do")


async def test_a_waiting_consumer_gets_a_message_when_it_comes(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, message_wait_interval_seconds=600)
    waiting = start(take, queue)
    await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
    assert not is_done(waiting)
    await queue.publish("late")
    assert await join(waiting) == "late"


@pytest.mark.usefixtures("default_server")
async def test_a_wait_ends_with_none_when_its_time_is_over(client: StreamClient) -> None:
    assert await take(make_queue(client, message_wait_interval_seconds=0.05)) is None


async def test_a_message_in_hand_is_in_flight_and_nobody_else_gets_it(client: StreamClient, raw: redis.Redis) -> None:
    queue, rival = make_queue(client), make_queue(client)
    await queue.publish("hello")
    async with queue.process_message() as message:
        assert message == "hello"
        assert len(in_flight(raw)) == 1
        assert await take(queue) is None
        assert await take(rival) is None


async def test_what_was_completed_leaves_nothing_behind(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, deduplication=False)
    await queue.publish("hello")
    await take(queue)
    assert (raw.xlen(NAME), in_flight(raw)) == (0, [])
    left = {key.decode() for key in raw.scan_iter() if not key.startswith(b"{orders}:producer:")}
    assert {key for key in left if ":chore:" not in key} == {NAME}, "the stream itself carries the group"


async def test_what_was_completed_after_a_retry_leaves_nothing_behind(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await queue.publish("hello")
    await fail(queue)
    await eventually(lambda: take(queue))
    assert (raw.xlen(NAME), in_flight(raw)) == (0, [])
    assert raw.keys("*:retries:*") + raw.keys("*:attempts:*") == []


async def test_many_consumers_get_every_message_once(client: StreamClient) -> None:
    queue = make_queue(client)
    texts = [f"message {n}" for n in range(40)]
    for text in texts:
        await queue.publish(text)
    found = await outcomes([start(take, queue) for _ in range(40)])
    assert sorted(found) == sorted(texts)


async def test_more_consumers_than_messages_leave_some_with_none(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    for n in range(5):
        await queue.publish(f"message {n}")
    found = await outcomes([start(take, queue) for _ in range(12)])
    assert sorted(text for text in found if text) == [f"message {n}" for n in range(5)]
    assert found.count(None) == 7
    assert in_flight(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_one_task_may_hold_several_messages_and_end_them_in_any_order(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client)
    for text in ("a", "b", "c"):
        await queue.publish(text)
    first, second = queue.process_message(), queue.process_message()
    assert (await first.__aenter__(), await second.__aenter__()) == ("a", "b")
    await first.__aexit__(None, None, None)
    assert len(in_flight(raw)) == 1
    async with queue.process_message() as third:
        assert third == "c"
        await second.__aexit__(None, None, None)
    assert (raw.xlen(NAME), in_flight(raw)) == (0, [])


@pytest.mark.usefixtures("default_server")
async def test_a_context_may_be_entered_again_when_it_has_ended(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await queue.publish("a")
    await queue.publish("b")
    processing, found = queue.process_message(), []
    for _ in range(3):
        async with processing as message:
            found.append((message, processing.attempts))
    assert found == [("a", 1), ("b", 1), (None, 0)]
    assert not processing.lease_lost
    assert raw.xlen(NAME) == 0


@pytest.mark.usefixtures("default_server")
async def test_the_context_tells_what_was_handed_out(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, message_wait_interval_seconds=60)
    await queue.publish("hello")
    [(entry_id, _)] = raw.xrange(NAME)
    tokens = []

    async def work(turn: int) -> None:
        processing = queue.process_message()
        async with processing as message:
            assert (message, processing.message_id) == ("hello", entry_id.decode())
            assert (processing.delivery_count, processing.attempts) == (turn, turn)
            tokens.append(processing.lease_token or "")
            raise LookupError("again")

    for turn in (1, 2):
        with pytest.raises(LookupError, match="again"):
            await work(turn)
    assert [int(token.partition(":")[0]) for token in tokens] == [1, 2], "tokens rise"


@pytest.mark.usefixtures("default_server")
async def test_the_context_of_no_message_tells_nothing(client: StreamClient) -> None:
    processing = make_queue(client).process_message()
    async with processing:
        told = (processing.message_id, processing.lease_token, processing.delivery_count, processing.attempts)
    assert told == (None, None, 0, 0)


# --- at most once -----------------------------------------------------------------------------------


async def test_at_most_once_a_completed_message_is_gone(client: StreamClient, raw: redis.Redis) -> None:
    queue = RedisMessageQueue(NAME, client=client, visibility_timeout_seconds=None, max_delivery_count=None)
    await queue.publish("hello")
    assert await take(queue) == "hello"
    assert (raw.xlen(NAME), in_flight(raw)) == (0, [])


async def test_at_most_once_a_message_whose_handler_fails_is_not_handed_out_again(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, message_visibility_timeout_seconds=None)
    await queue.publish("hello")
    assert await fail(queue) == ("hello", 1, 1)
    assert await take(queue) is None
    assert (raw.xlen(NAME), in_flight(raw), payloads(raw, DEAD_LETTERS)) == (0, [], [b"hello"])


# --- beside the streams -----------------------------------------------------------------------------


async def test_entries_of_a_stream_producer_are_messages_of_the_queue(client: StreamClient) -> None:
    await StreamProducer(client, NAME).push({"n": 1})
    queue = make_queue(client)
    assert json.loads(await take(queue)) == {"n": 1}


@pytest.mark.usefixtures("default_server")
async def test_an_entry_without_a_payload_becomes_a_dead_letter_and_stops_nobody(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.xadd(NAME, {"something": "else"})
    queue = make_queue(client, message_wait_interval_seconds=60)
    await queue.publish("hello")
    assert await take(queue) == "hello"
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert (record[b"dlq_reason"], record[b"something"]) == (b"decode_error", b"else")


async def test_what_another_group_still_needs_stays_in_the_stream(client: StreamClient, raw: redis.Redis) -> None:
    raw.xgroup_create(NAME, "archive", "0", mkstream=True)
    queue = make_queue(client, enable_completed_queue=True)
    await queue.publish("hello")
    await take(queue)
    assert (payloads(raw), in_flight(raw)) == ([b"hello"], [])
    assert (await queue.stats()).pending == 0
    assert await take(queue) is None


@pytest.mark.usefixtures("default_server")
async def test_consumers_in_two_clients_share_the_work(redis_url: str) -> None:
    async with StreamClient.from_url(redis_url) as one, StreamClient.from_url(redis_url) as other:
        queues = [make_queue(one), make_queue(other)]
        for n in range(20):
            await queues[n % 2].publish(f"message {n}")
        found = [await take(queues[n // 3 % 2]) for n in range(20)]
        assert found == [f"message {n}" for n in range(20)]


async def test_a_vanished_stream_is_no_reason_to_stop(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, message_wait_interval_seconds=60)
    await queue.publish("before")
    assert await take(queue) == "before"
    raw.delete(NAME)
    await queue.publish("after")
    assert await take(queue) == "after"


# --- hand-backs: it was not the message's fault -------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()], ids=lambda error: type(error).__name__)
async def test_who_is_interrupted_hands_the_message_back_without_an_attempt(
    client: StreamClient, raw: redis.Redis, error: BaseException
) -> None:
    queue, heir = make_queue(client), make_queue(client)
    await queue.publish("hello")
    assert await fail(queue, error) == ("hello", 1, 1)
    processing = heir.process_message()
    async with processing as message:
        assert (message, processing.attempts) == ("hello", 1)
    assert raw.xlen(DEAD_LETTERS) == 0


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Cancelled, BaseException])
async def test_whatever_a_handler_raises_itself_is_a_failed_attempt(
    client: StreamClient, raw: redis.Redis, kind: type[BaseException]
) -> None:
    # A message whose handler ends the process must not do so for ever.
    queue = make_queue(client, max_delivery_count=2)
    await queue.publish("hello")

    async def run() -> None:
        while True:
            async with queue.process_message() as message:
                if message is not None:
                    raise kind

    for _ in range(2):
        with pytest.raises(kind):
            await run()
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    told = [record[name].decode() for name in (b"data", b"dlq_reason", b"dlq_error", b"dlq_attempts")]
    assert told == ["hello", "max_deliveries", kind.__name__, "2"]


# async only
async def test_a_cancelled_handler_hands_the_message_back_without_an_attempt(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue, began = make_queue(client), Event()
    await queue.publish("hello")

    async def work() -> None:
        async with queue.process_message():
            began.set()
            await Event().wait()

    for _ in range(5):
        working = start(work)
        await wait_for(began)
        began.clear()
        working.cancel()
        assert [type(outcome).__name__ for outcome in await outcomes([working])] == ["CancelledError"]
    processing = queue.process_message()
    async with processing as message:
        assert (message, processing.attempts) == ("hello", 1)
    assert (raw.xlen(NAME), raw.xlen(DEAD_LETTERS)) == (0, 0)


async def test_what_a_cancelled_wait_was_handed_goes_to_the_next_one_in_the_same_process(
    client: StreamClient, raw: redis.Redis
) -> None:
    # The server may hand a message to a connection whose end it has not heard of.
    queue = make_queue(client, message_wait_interval_seconds=600)
    for n in range(5):
        waiting = start(take, queue)
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        waiting.cancel()
        await outcomes([waiting])
        await queue.publish(f"message {n}")
        processing = queue.process_message()
        async with processing as message:
            assert (message, processing.attempts) == (f"message {n}", 1)


async def test_closing_the_queue_hands_back_what_a_cancelled_wait_was_handed(
    client: StreamClient, raw: redis.Redis
) -> None:
    heir = make_queue(client, message_wait_interval_seconds=60)
    for n in range(5):
        queue = make_queue(client, message_wait_interval_seconds=600)
        waiting = start(take, queue)
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        waiting.cancel()
        await outcomes([waiting])
        await queue.publish(f"message {n}")
        await queue.close()
        assert await take(heir) == f"message {n}"


# end async only


@pytest.mark.usefixtures("default_server")
async def test_logs_that_are_not_enabled_are_not_written(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await queue.publish("a")
    await queue.publish("b")
    await take(queue)
    await fail(queue)
    assert raw.exists(COMPLETED, FAILED) == 0
