"""A handler that raises is a failed attempt: tried again after a growing delay, and at the limit a dead letter.

redis-message-queue takes an exception for the end of the message; here that is the policy on_failure="terminal".
"""

from __future__ import annotations

import time
import traceback

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient
from penstock.errors import FatalError, RetryLater, Snooze
from penstock.events import Event, EventName
from tests.helpers.aio import eventually
from tests.queue.stage import (
    DEAD_LETTERS,
    FAILED,
    NAME,
    fail,
    fail_until_dead,
    in_flight,
    make_queue,
    of_kind,
    payloads,
    take,
)

pytestmark = pytest.mark.every_server

RETRIES = "{orders}:retries:queue"


async def test_a_message_whose_handler_fails_is_handed_out_again(client: StreamClient, raw: redis.Redis) -> None:
    # Unlike redis-message-queue, which removes it.
    queue = make_queue(client, message_wait_interval_seconds=30)
    await queue.publish("hello")
    assert await fail(queue) == ("hello", 1, 1)
    assert await fail(queue) == ("hello", 2, 2)
    assert await take(queue) == "hello"
    assert (raw.xlen(NAME), raw.xlen(DEAD_LETTERS)) == (0, 0)


async def test_another_process_may_get_the_next_attempt(client: StreamClient) -> None:
    queue, other = make_queue(client), make_queue(client, message_wait_interval_seconds=30)
    await queue.publish("hello")
    await fail(queue)
    processing = other.process_message()
    async with processing as message:
        assert (message, processing.attempts) == ("hello", 2)


@pytest.mark.usefixtures("default_server")
async def test_what_waits_for_its_retry_holds_nobody_up(client: StreamClient) -> None:
    queue = make_queue(client, retry_delay_seconds=600, max_retry_delay_seconds=600)
    await queue.publish("bad")
    await queue.publish("good")
    await fail(queue)
    assert await take(queue) == "good"
    assert await take(queue) is None
    assert (await queue.stats()).retrying == 1


@pytest.mark.usefixtures("default_server")
async def test_the_delay_doubles_up_to_its_limit(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Event] = []
    queue = make_queue(
        client, max_delivery_count=6, retry_delay_seconds=10, max_retry_delay_seconds=60, on_event=events.append
    )
    await queue.publish("hello")
    for turn in range(5):
        before = time.time()
        await fail(queue)
        after = time.time()
        [(entry_id, due_ms)] = raw.zrange(RETRIES, 0, -1, withscores=True)
        plain = [10, 20, 40, 60, 60][turn]
        assert before + plain * 0.9 - 1 < due_ms / 1000 < after + plain * 1.1 + 1, turn
        raw.zadd(RETRIES, {entry_id: 1})
        await eventually(lambda queue=queue: _is_due(queue))
    delays = [event.fields["delay_s"] for event in of_kind(events, EventName.RETRIED)]
    for found, plain in zip(delays, [10, 20, 40, 60, 60], strict=True):
        assert isinstance(found, float)
        assert plain * 0.9 <= found <= plain * 1.1, "with a jitter of a tenth"


def _is_due(queue: RedisMessageQueue) -> bool:
    # This process remembers for a second that nothing was due; here it forgets.
    for consumer in queue._gateway._consumers.values():  # type: ignore[attr-defined]
        consumer._next_due_s = 0.0
    return True


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_after_the_last_attempt_it_is_a_dead_letter(client: StreamClient, raw: redis.Redis, limit: int) -> None:
    queue = make_queue(client, max_delivery_count=limit)
    await queue.publish("hello")
    assert await fail_until_dead(queue, raw) == limit
    assert (raw.xlen(NAME), in_flight(raw), payloads(raw, DEAD_LETTERS)) == (0, [], [b"hello"])
    assert raw.keys("*:retries:*") + raw.keys("*:attempts:*") == []
    assert await take(queue) is None


@pytest.mark.usefixtures("default_server")
async def test_ten_attempts_are_the_default(client: StreamClient, raw: redis.Redis) -> None:
    queue = RedisMessageQueue(NAME, client=client, retry_delay_seconds=0.001, max_retry_delay_seconds=0.001)
    await queue.publish("hello")
    assert await fail_until_dead(queue, raw) == 10


@pytest.mark.usefixtures("default_server")
async def test_without_a_limit_it_is_tried_for_ever(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(
        client,
        max_delivery_count=None,
        dead_letter_queue=None,
        max_retry_delay_seconds=0.001,
        message_wait_interval_seconds=30,
    )
    await queue.publish("hello")
    for turn in range(1, 41):
        assert await fail(queue) == ("hello", turn, turn)
    assert raw.xlen(DEAD_LETTERS) == 0


async def test_a_dead_letter_has_all_that_is_known(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_delivery_count=2, get_deduplication_key=lambda message: message["id"])
    await queue.publish({"id": "abc"})
    [(entry_id, fields)] = raw.xrange(NAME)
    before_ms = int(time.time() * 1000)
    await fail_until_dead(queue, raw, ValueError("no such customer"))
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert {name: record[name] for name in fields} == fields, "the message itself, untouched"
    assert record[b"data"] == b'{"id": "abc"}'
    told = {name.decode().removeprefix("dlq_"): value.decode() for name, value in record.items() if name not in fields}
    assert before_ms <= int(told.pop("time")) <= time.time() * 1000
    assert told.pop("consumer").startswith("queue_")
    assert "ValueError: no such customer\n" in told.pop("traceback")
    assert told == {
        "reason": "max_deliveries",
        "source": NAME,
        "id": entry_id.decode(),
        "group": "queue",
        "error": "ValueError",
        "error_text": "no such customer",
        "attempts": "2",
        "deliveries": "2",
    }


async def test_a_fatal_error_is_not_tried_again(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_delivery_count=5)
    await queue.publish("hello")
    await fail(queue, FatalError("the order was cancelled"))
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert (record[b"dlq_reason"], record[b"dlq_attempts"]) == (b"fatal", b"1")
    assert record[b"dlq_error_text"] == b"the order was cancelled"


async def test_a_snoozed_message_comes_back_and_counts_no_attempt(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_delivery_count=2, message_wait_interval_seconds=30)
    await queue.publish("hello")
    for turn in range(1, 6):
        assert await fail(queue, Snooze(0.001)) == ("hello", turn, 1)
    assert raw.xlen(DEAD_LETTERS) == 0
    assert await take(queue) == "hello"


@pytest.mark.usefixtures("default_server")
async def test_snooze_and_retry_later_choose_their_own_delay(client: StreamClient, raw: redis.Redis) -> None:
    for error in (Snooze(500), RetryLater(500)):
        queue = make_queue(client, max_delivery_count=2)
        await queue.publish(repr(error))
        before = time.time()
        await fail(queue, error)
        after = time.time()
        [(_, due_ms)] = raw.zrange(RETRIES, 0, -1, withscores=True)
        assert before + 499 <= due_ms / 1000 <= after + 501
        raw.flushall()


async def test_retry_later_counts_and_ends_at_the_limit(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_delivery_count=3)
    await queue.publish("hello")
    assert await fail_until_dead(queue, raw, RetryLater(0.001)) == 3


@pytest.mark.usefixtures("default_server")
async def test_what_the_handler_raised_reaches_the_caller_even_if_nothing_can_be_recorded(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, max_delivery_count=1)
    await queue.publish("hello")
    raw.set(DEAD_LETTERS, "not a stream")
    assert await fail(queue, LookupError("what the handler raised")) == ("hello", 1, 1)
    assert len(in_flight(raw)) == 1, "without a place for its record the message stays"
    assert payloads(raw) == [b"hello"]


@pytest.mark.usefixtures("default_server")
async def test_an_error_text_without_end_is_cut(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_delivery_count=1, enable_failed_queue=True)
    await queue.publish("hello")
    await fail(queue, ValueError("x" * 1_000_000))
    for key in (DEAD_LETTERS, FAILED):
        assert raw.memory_usage(key) < 50_000


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("text", ["\ud83d half of a pair", "nul \0", ""], ids=repr)
async def test_an_error_may_say_what_utf8_cannot(client: StreamClient, raw: redis.Redis, text: str) -> None:
    queue = make_queue(client, max_delivery_count=1, enable_failed_queue=True)
    await queue.publish("hello")
    await fail(queue, ValueError(text))
    assert (payloads(raw, DEAD_LETTERS), payloads(raw, FAILED)) == ([b"hello"], [b"hello"])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error cannot even say what it is")


@pytest.mark.usefixtures("default_server")
async def test_an_error_that_cannot_say_what_it_is_is_a_failure_like_any_other(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, max_delivery_count=1, enable_failed_queue=True)
    await queue.publish("hello")
    await fail(queue, Mute())
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert (record[b"data"], record[b"dlq_error"]) == (b"hello", b"Mute")


# --- the policy of redis-message-queue --------------------------------------------------------------


async def test_terminal_removes_what_failed_and_tries_nothing_again(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, on_failure="terminal")
    await queue.publish("hello")
    assert await fail(queue) == ("hello", 1, 1)
    assert (raw.xlen(NAME), in_flight(raw), raw.exists(DEAD_LETTERS, FAILED)) == (0, [], 0)
    assert await take(queue) is None


async def test_terminal_records_what_failed_in_the_failed_log(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, on_failure="terminal", enable_failed_queue=True)
    await queue.publish("hello")
    [(entry_id, _)] = raw.xrange(NAME)
    await fail(queue, LookupError("no such customer"))
    assert (raw.xlen(NAME), in_flight(raw), raw.exists(DEAD_LETTERS)) == (0, [], 0)
    [(_, record)] = raw.xrange(FAILED)
    assert (record[b"data"], record[b"log_id"], record[b"log_attempts"]) == (b"hello", entry_id, b"1")
    assert (record[b"log_error"], record[b"log_error_text"]) == (b"LookupError", b"no such customer")


@pytest.mark.usefixtures("default_server")
async def test_terminal_still_hands_back_what_was_interrupted(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, on_failure="terminal", message_wait_interval_seconds=30)
    await queue.publish("hello")
    await fail(queue, KeyboardInterrupt())
    assert await take(queue) == "hello"


@pytest.mark.usefixtures("default_server")
async def test_terminal_keeps_a_message_whose_record_is_refused(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, on_failure="terminal", enable_failed_queue=True)
    await queue.publish("hello")
    raw.set(FAILED, "not a stream")
    await fail(queue)
    assert (payloads(raw), len(in_flight(raw))) == ([b"hello"], 1)


@pytest.mark.usefixtures("default_server")
async def test_a_dead_letter_that_the_server_refuses_stops_no_neighbour_and_is_tried_again(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.xadd(DEAD_LETTERS, {"junk": "1"}, id=f"{2**64 - 1}-{2**64 - 1}")  # nothing can be added behind it
    raw.xadd(NAME, {"no": "payload"})
    queue = make_queue(client)
    for name in ("a", "b"):
        await queue.publish(name)
    taken = [await take(queue) for _ in range(3)]
    assert [message for message in taken if message is not None] == ["a", "b"]
    raw.delete(DEAD_LETTERS)

    async def is_dead_lettered() -> bool:
        assert await take(queue) is None
        return bool(raw.exists(DEAD_LETTERS))

    await eventually(is_dead_lettered)
    assert raw.xlen(NAME) == 0


@pytest.mark.usefixtures("default_server")
async def test_the_error_that_the_caller_gets_names_message_and_attempt(client: StreamClient) -> None:
    queue = make_queue(client, message_wait_interval_seconds=30)
    await queue.publish("hello")
    error = ValueError("no such customer")
    for attempt in (1, 2):
        processing = queue.process_message()
        with pytest.raises(ValueError, match="no such customer"):
            async with processing:
                raise error
        note = f"message {processing.message_id} of queue {NAME}, attempt {attempt}"
        assert note in traceback.format_exception(error)[-1]
