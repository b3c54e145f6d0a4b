"""A batch handler gets a list of messages and returns the ids that are done; everything else comes again."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.errors import ConfigurationError
from penstock.runtime.aio import Cancelled
from tests.helpers.aio import eventually
from tests.streams.stage import (
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    dead_letters,
    expire,
    fail,
    pending_ids,
    publish,
    quick,
    read_as,
    running,
)


async def test_the_ids_that_the_handler_returns_are_acknowledged(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(25))
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 25)
    assert handler.seen == list(range(25))
    assert set(handler.counts) == {(1, 1)}
    assert pending_ids(raw) == []


async def test_what_the_handler_leaves_out_comes_again(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(10))

    def even_ones_first(messages: list[StreamMessage]) -> list[str]:
        return [message.id for message in messages if message.data % 2 == 0 or message.attempts > 1]

    handler = Recorder(even_ones_first)
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 10)
    assert handler.runs == {n: 1 + n % 2 for n in range(10)}
    assert consumer.metrics().total_retried == 5
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("nothing", [None, [], ()])
async def test_a_handler_that_returns_nothing_acknowledges_nothing(
    client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture, nothing: Any
) -> None:
    await publish(client, range(3))
    handler = Recorder(lambda _: nothing)
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), handler)
    caplog.set_level(logging.WARNING)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 3)
    assert consumer.metrics().total_acked == 0
    assert handler.runs == {0: 2, 1: 2, 2: 2}
    assert ("returned None" in caplog.text) == (nothing is None)


@pytest.mark.usefixtures("default_server")
async def test_an_exception_brings_the_whole_batch_again(client: StreamClient) -> None:
    await publish(client, range(4))
    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts > 1 else fail(messages))
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
    assert handler.runs == dict.fromkeys(range(4), 2)
    assert consumer.metrics().total_errors == 1


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("kind", [tuple, set, iter])
async def test_the_ids_may_come_in_any_iterable(client: StreamClient, raw: redis.Redis, kind: Any) -> None:
    await publish(client, range(4))
    handler = Recorder(lambda messages: kind(all_ids(messages)))
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("wrong", ["1-1", 7])
async def test_a_handler_that_returns_something_else_than_ids_has_failed(client: StreamClient, wrong: Any) -> None:
    await publish(client, [1])
    errors: list[BaseException] = []

    def remember(error: BaseException, messages: list[StreamMessage]) -> None:
        errors.append(error)

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(lambda _: wrong), error_hook=remember)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert [type(error) for error in errors] == [ConfigurationError]


async def test_ids_that_are_not_the_consumers_own_are_neither_acknowledged_nor_counted(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(5))
    raw.xgroup_create(STREAM, GROUP, "0")
    foreign = read_as(raw, "someone-else", 2)
    handler = Recorder(lambda messages: [*all_ids(messages), *foreign, "1-1", all_ids(messages)[0]])
    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=60_000), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 3)
    assert pending_ids(raw) == foreign
    assert consumer.metrics().total_acked == 3


async def test_a_batch_is_never_greater_than_batch_size(client: StreamClient) -> None:
    await publish(client, range(500))
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(batch_size=7), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 500)
    assert max(len(batch) for batch in handler.batches) <= 7
    assert handler.seen == list(range(500))


async def test_a_thousand_orphans_come_in_batches_of_batch_size_too(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(1_000))
    raw.xgroup_create(STREAM, GROUP, "0")
    assert len(read_as(raw, "dead")) == 1_000
    expire(raw)
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1_000)
    assert max(len(batch) for batch in handler.batches) <= 10
    assert sorted(handler.seen) == list(range(1_000))
    assert consumer.metrics().total_reclaimed == 1_000


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("handlers", [{}, {"handler": all_ids, "message_handler": print}])
async def test_a_consumer_takes_exactly_one_kind_of_handler(client: StreamClient, handlers: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="exactly one"):
        StreamConsumer(client, STREAM, quick(), **handlers)


@pytest.mark.usefixtures("default_server")
async def test_a_plain_function_serves_as_well_as_an_async_one(client: StreamClient) -> None:
    await publish(client, range(10))
    seen: list[int] = []

    def handler(messages: list[StreamMessage]) -> list[str]:
        seen.extend(message.data for message in messages)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 10)
    assert seen == list(range(10))


@pytest.mark.usefixtures("default_server")
async def test_any_exception_of_a_plain_function_is_a_failed_attempt(client: StreamClient) -> None:
    await publish(client, range(2))
    errors: list[BaseException] = []

    def handle(message: StreamMessage) -> None:
        next(iter([]))  # StopIteration, which no coroutine and no future may raise

    def remember(error: BaseException, messages: list[StreamMessage]) -> None:
        errors.append(error)

    config = quick(max_deliveries=1, concurrency=1)
    consumer = StreamConsumer(client, STREAM, config, message_handler=handle, error_hook=remember)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 2)
    assert len(errors) == 2


# async only
@pytest.mark.usefixtures("default_server")
async def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async(client: StreamClient) -> None:
    await publish(client, [1])
    errors: list[str] = []
    handler = Recorder()

    def wrapped(messages: list[StreamMessage]) -> Any:
        return handler(messages)

    async def remember(error: BaseException, messages: list[StreamMessage]) -> None:
        errors.append(str(error))

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), wrapped, error_hook=remember)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    assert "async def" in errors[0]


# end async only


# --- one message at a time ------------------------------------------------------------------------


async def test_a_message_handler_acknowledges_by_returning(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(40))
    seen: list[int] = []

    async def handle(message: StreamMessage) -> None:
        seen.append(message.data)

    consumer = StreamConsumer(client, STREAM, quick(), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 40)
    assert sorted(seen) == list(range(40))
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_a_message_that_fails_takes_no_neighbour_along(client: StreamClient) -> None:
    await publish(client, range(20))
    runs: list[tuple[int, int]] = []

    def handle(message: StreamMessage) -> str:
        runs.append((message.data, message.attempts))
        if message.data == 7 and message.attempts < 3:
            raise ValueError("not yet")
        return "whatever a message handler returns, it means done"

    consumer = StreamConsumer(client, STREAM, quick(), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 20)
    assert sorted(runs) == sorted([*((n, 1) for n in range(20)), (7, 2), (7, 3)])
    assert consumer.metrics().total_errors == 2


@pytest.mark.usefixtures("default_server")
async def test_a_message_carries_what_its_producer_said(client: StreamClient) -> None:
    producer = StreamProducer(client, STREAM)
    entry_id = await producer.push({"n": 1}, message_id="m-1", key="customer-7", headers={"tenant": "ü"})
    got: list[StreamMessage] = []
    consumer = StreamConsumer(client, STREAM, quick(), message_handler=got.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1)
    [message] = got
    assert (message.id, message.stream, message.data) == (entry_id, STREAM, {"n": 1})
    assert (message.message_id, message.key, message.headers) == ("m-1", "customer-7", {"tenant": "ü"})
    assert int(message.timestamp.timestamp() * 1000) == int(entry_id.partition("-")[0])


# --- errors that are no Exception -----------------------------------------------------------------


class Unusual(BaseException):
    """What a handler may raise that is neither an exception nor a request to exit."""


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("kind", [Cancelled, GeneratorExit, Unusual])
async def test_whatever_a_handler_raises_is_a_failed_attempt(
    client: StreamClient, raw: redis.Redis, kind: type[BaseException], is_plain: bool
) -> None:
    await publish(client, range(4))
    runs: list[tuple[int, int]] = []

    async def handler(message: StreamMessage) -> None:
        runs.append((message.data, message.attempts))
        if message.data == 1:
            raise kind("as ordered")

    def plain(message: StreamMessage) -> None:
        runs.append((message.data, message.attempts))
        if message.data == 1:
            raise kind("as ordered")

    consumer = StreamConsumer(client, STREAM, quick(), message_handler=plain if is_plain else handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 3 and consumer.metrics().total_dlq == 1)
    assert sorted(runs) == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    [letter] = dead_letters(raw)
    assert (letter["data"], letter["dlq_reason"]) == (b"1", b"max_deliveries")
    assert (letter["dlq_error"], letter["dlq_error_text"]) == (kind.__name__.encode(), b"as ordered")


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("is_pass", [False, True])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_handler_that_exits_ends_the_run_and_its_attempt_counts(
    client: StreamClient, raw: redis.Redis, kind: type[BaseException], is_pass: bool
) -> None:
    ids = await publish(client, range(3))
    counts: list[tuple[int, int]] = []

    async def handler(message: StreamMessage) -> None:
        if message.data == 0:
            counts.append((message.delivery_count, message.attempts))
            raise kind(66)

    for _ in range(3):
        consumer = StreamConsumer(client, STREAM, quick(concurrency=1), message_handler=handler)
        with pytest.raises(kind, match="66"):
            await (run_passes(consumer) if is_pass else consumer.run())
    assert counts == [(1, 1), (2, 2), (3, 3)]
    assert [letter["dlq_id"].decode() for letter in dead_letters(raw)] == ids[:1]
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: len(raw.xrange(STREAM)) == 3 and pending_ids(raw) == [])


# --- what is told of a failure --------------------------------------------------------------------


@pytest.mark.usefixtures("default_server")
async def test_each_failure_is_logged_once_with_its_traceback_and_where_it_happened(
    client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    [entry_id] = await publish(client, [{"name": "Ada"}])

    async def ship(message: StreamMessage) -> None:
        message.data["address"]

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), message_handler=ship)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 1)
    first, last = [record for record in caplog.records if record.exc_info]
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    for attempt, record in enumerate((first, last), 1):
        told: Any = record
        assert (told.stream, told.group, told.id, told.attempt) == (STREAM, GROUP, entry_id, attempt)
        assert all(part in record.getMessage() for part in (STREAM, GROUP, entry_id, f"attempt {attempt}", "'address'"))
        assert record.exc_info is not None
        assert record.exc_info[0] is KeyError
    [letter] = dead_letters(raw)
    assert b'message.data["address"]' in letter["dlq_traceback"]


class Nameless(type):
    """A class that does not tell its name."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise LookupError("no name")


class Silence(BaseException):
    """No Exception: whoever catches only those is ended by it."""


class Mute(Exception, metaclass=Nameless):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise Silence

    __repr__ = __str__


UNSPEAKABLE = {"mute": Mute(), "surrogate": ValueError("\ud800"), "huge": ValueError("x" * 5_000_000)}


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("name", UNSPEAKABLE)
async def test_an_error_that_cannot_be_shown_stops_nobody(
    client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    await publish(client, range(3))

    async def handler(message: StreamMessage) -> None:
        if message.data == 1:
            raise UNSPEAKABLE[name]

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), message_handler=handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 2 and consumer.metrics().total_dlq == 1)
    [letter] = dead_letters(raw)
    assert 0 < len(letter["dlq_error_text"]) <= 2_000
    logged = [caplog.handler.format(record) for record in caplog.records if record.name.endswith(".streams")]
    assert 0 < len("".join(logged).encode()) < 20_000


async def run_passes(consumer: StreamConsumer) -> None:
    """Drives a consumer by hand for as long as it lets."""
    while True:
        await consumer.run_once()
