"""A failed message comes again after a growing delay until its chances are used up; a handler may decide otherwise."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest
import redis

from penstock import ConsumerGroup, DeadLetters, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.errors import FatalError, RetryLater, Snooze
from penstock.events import Event, EventName
from penstock.runtime.aio import IS_ASYNC
from tests.helpers.aio import DEADLINE_S, eventually, pause
from tests.streams.stage import (
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    expire,
    fail,
    of_kind,
    pending_ids,
    publish,
    quick,
    recoveries,
    running,
)

pytestmark = pytest.mark.every_server


async def test_the_delay_grows_from_one_failure_to_the_next(client: StreamClient) -> None:
    await publish(client, [1])
    began: list[float] = []

    def remember_when(messages: list[StreamMessage]) -> list[str]:
        began.append(time.monotonic())
        return []

    config = quick(max_deliveries=5, retry_initial_delay_ms=50, retry_max_delay_ms=200, retry_jitter=0)
    consumer = StreamConsumer(client, STREAM, config, Recorder(remember_when))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    gaps_ms = [(later - earlier) * 1000 for earlier, later in pairwise(began)]
    assert all(gap > least - 2 for gap, least in zip(gaps_ms, [50, 100, 200, 200], strict=True))


async def test_a_message_that_waits_for_its_retry_stays_pending_and_says_when_it_is_due(
    client: StreamClient, raw: redis.Redis
) -> None:
    [entry_id] = await publish(client, [1])
    delay = {"retry_initial_delay_ms": 60_000, "retry_max_delay_ms": 60_000, "retry_jitter": 0}
    config = quick(**delay, recovery_interval_ms=20)
    before_ms = int(raw.time()[0]) * 1000
    consumer, peer = (StreamConsumer(client, STREAM, config, Recorder(fail)) for _ in range(2))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_retried == 1)
        after_ms = int(raw.time()[0]) * 1000 + 1_000
        [entry] = await ConsumerGroup(client, STREAM, GROUP).pending_details()
        async with running(peer):
            # It is passed over by recovery, however long its lease has run out.
            expire(raw)
            await recoveries(raw)
    assert (entry.id, entry.delivery_count) == (entry_id, 1)
    assert entry.retry_at_ms is not None
    assert before_ms + 60_000 <= entry.retry_at_ms <= after_ms + 60_000
    assert consumer.metrics().total_read == 1
    assert peer.metrics().total_read == 0


async def test_a_message_runs_as_often_as_max_deliveries_allows(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    dead_lettered: list[tuple[int, int, str]] = []

    async def dead_letter(message: StreamMessage, reason: str) -> None:
        dead_lettered.append((message.delivery_count, message.attempts, reason))

    handler = Recorder(fail)
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=3), handler, dead_letter)
    async with running(consumer):
        await eventually(lambda: dead_lettered)
    assert handler.counts == [(1, 1), (2, 2), (3, 3)]
    assert dead_lettered == [(3, 3, "max_deliveries")]
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_max_attempts_limits_the_runs_as_well(client: StreamClient) -> None:
    await publish(client, [1])
    handler = Recorder(fail)
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=10, max_attempts=2), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert handler.counts == [(1, 1), (2, 2)]


async def test_a_fatal_error_buries_the_message_at_once(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1, 2])

    def handle(message: StreamMessage) -> None:
        if message.data == 1:
            raise FatalError("no such customer")

    consumer = StreamConsumer(client, STREAM, quick(), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == consumer.metrics().total_acked == 1)
    [letter] = await DeadLetters(client, STREAM).list()
    assert (letter.reason, letter.attempts, letter.error, letter.error_text) == (
        "fatal", 1, "FatalError", "no such customer",
    )  # fmt: skip
    assert pending_ids(raw) == []


async def test_a_snooze_burns_no_attempt(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    counts: list[tuple[int, int]] = []

    async def handle(message: StreamMessage) -> None:
        counts.append((message.delivery_count, message.attempts))
        if len(counts) < 6:
            raise Snooze(0.01)

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1)
    assert counts == [(1, 1)] * 6
    assert consumer.metrics().total_dlq == 0


@pytest.mark.usefixtures("default_server")
async def test_retry_later_brings_its_own_delay_and_counts(client: StreamClient) -> None:
    await publish(client, [1])
    began: list[float] = []

    async def handle(message: StreamMessage) -> None:
        began.append(time.monotonic())
        raise RetryLater(0.15, "the other side is busy")

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=3), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert len(began) == 3
    assert all(later - earlier > 0.148 for earlier, later in pairwise(began))


@pytest.mark.usefixtures("default_server")
async def test_a_handler_that_runs_too_long_has_failed(client: StreamClient) -> None:
    await publish(client, [1])
    errors: list[str] = []

    async def handle(message: StreamMessage) -> None:
        await pause(5.0)  # sync: pause(0.3)

    async def remember(error: BaseException, messages: list[StreamMessage]) -> None:
        errors.append(type(error).__name__)

    config = quick(handler_timeout_ms=100, max_deliveries=1)
    consumer = StreamConsumer(client, STREAM, config, message_handler=handle, error_hook=remember)
    # A thread cannot be interrupted: in the sync half such a handler goes on, and what it says counts.
    outcome = "total_dlq"  # sync: outcome = "total_acked"
    async with running(consumer):
        await eventually(lambda: getattr(consumer.metrics(), outcome) == 1)
    assert errors == ["HandlerTimeout"]  # sync: assert errors == []


@pytest.mark.skipif(not IS_ASYNC, reason="a handler in a thread keeps its worker")
@pytest.mark.usefixtures("default_server")
async def test_a_plain_handler_that_hangs_holds_up_neither_other_messages_nor_hooks(client: StreamClient) -> None:
    await publish(client, range(4))
    may_end, seen, errors = threading.Event(), list[int](), list[str]()

    def handle(messages: list[StreamMessage]) -> list[str]:
        seen.append(messages[0].data)
        if messages[0].data < 2:
            may_end.wait(DEADLINE_S)
        return all_ids(messages)

    def remember(error: BaseException, messages: list[StreamMessage]) -> None:
        errors.append(type(error).__name__)

    # One second: the limit holds for those that do not hang as well, however busy the machine.
    config = quick(batch_size=1, handler_timeout_ms=1_000, max_deliveries=1)
    consumer = StreamConsumer(client, STREAM, config, handle, error_hook=remember)
    try:
        async with running(consumer):
            await eventually(lambda: consumer.metrics().total_dlq == consumer.metrics().total_acked == 2)
    finally:
        may_end.set()
    assert (seen, errors) == (list(range(4)), ["HandlerTimeout"] * 2)


async def test_the_last_permitted_run_is_alone(client: StreamClient) -> None:
    await publish(client, range(8))
    sizes: dict[int, set[int]] = {}

    def remember_sizes(messages: list[StreamMessage]) -> list[str]:
        for message in messages:
            sizes.setdefault(message.delivery_count, set()).add(len(messages))
        return []

    config = quick(max_deliveries=3, retry_initial_delay_ms=50, retry_jitter=0)
    consumer = StreamConsumer(client, STREAM, config, Recorder(remember_sizes))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 8)
    assert sizes[3] == {1}
    assert max(sizes[1]) > 1
    assert max(sizes[2]) > 1


@pytest.mark.usefixtures("default_server")
async def test_a_message_that_succeeds_at_last_leaves_no_trace_of_its_failures(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(5))
    events: list[Event] = []
    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts == 3 else fail(messages))
    consumer = StreamConsumer(client, STREAM, quick(), handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 5)
    assert consumer.metrics().total_retried == 10
    assert sum(int(str(event.fields["count"])) for event in of_kind(events, EventName.RETRIED)) == 10
    assert not raw.exists(f"{{{STREAM}}}:attempts:{GROUP}", f"{{{STREAM}}}:retries:{GROUP}")


async def test_an_expired_message_is_not_handled_but_kept_as_a_dead_letter(client: StreamClient) -> None:
    producer = StreamProducer(client, STREAM)
    await producer.push({"n": 1}, expires_in_ms=10)
    await producer.push({"n": 2}, expires_in_ms=3_600_000)
    expired_at = time.time() + 0.02
    await eventually(lambda: time.time() > expired_at)
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == consumer.metrics().total_acked == 1)
    assert handler.seen == [{"n": 2}]
    [letter] = await DeadLetters(client, STREAM).list()
    assert letter.reason == "expired"


@pytest.mark.usefixtures("default_server")
async def test_a_message_that_expires_while_it_waits_for_its_retry_is_not_handled_again(
    client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await StreamProducer(client, STREAM).push({"n": 1}, expires_in_ms=3_600_000)

    def fail_as_time_flies(messages: list[StreamMessage]) -> list[str]:
        later_s = time.time() + 7_200
        monkeypatch.setattr(time, "time", lambda: later_s)
        return []

    handler = Recorder(fail_as_time_flies)
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert len(handler.seen) == 1
    [letter] = await DeadLetters(client, STREAM).list()
    assert letter.reason == "expired"
