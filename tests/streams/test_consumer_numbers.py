"""A consumer counts what the server confirmed, tells what happened, and no hook of the user can hurt it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage
from penstock.delivery.decoding import Rejected
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.policy import Reason
from tests.helpers.aio import eventually, next_turn
from tests.streams.stage import GROUP, STREAM, Recorder, all_ids, expire, fail, publish, quick, read_as, running

# async only
import asyncio  # isort: skip
# end async only

pytestmark = pytest.mark.usefixtures("default_server")


async def test_the_numbers_start_at_zero(client: StreamClient) -> None:
    metrics = StreamConsumer(client, STREAM, quick(), Recorder()).metrics()
    assert (metrics.total_read, metrics.total_acked, metrics.total_dlq, metrics.total_errors) == (0, 0, 0, 0)
    assert (metrics.tps_in, metrics.tps_out, metrics.uptime_secs) == (0.0, 0.0, 0.0)


async def test_the_numbers_tell_the_whole_story(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(20))
    raw.xgroup_create(STREAM, GROUP, "0")
    read_as(raw, "dead", 5)
    expire(raw)

    def fail_at_13(message: StreamMessage) -> None:
        if message.data == 13:
            raise ValueError("unlucky")

    consumer = StreamConsumer(
        client, STREAM, quick(max_deliveries=3, recovery_interval_ms=20), message_handler=fail_at_13
    )
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 19 and consumer.metrics().total_dlq == 1)
    metrics = consumer.metrics()
    assert metrics.total_read == 22  # 13 came three times
    assert metrics.total_reclaimed == 5
    assert (metrics.total_errors, metrics.total_retried, metrics.total_lease_lost) == (3, 2, 0)
    assert 0 < metrics.tps_in <= 22
    assert 0 < metrics.tps_out <= 19
    assert metrics.tps_total == round(metrics.tps_in + metrics.tps_out, 2)


def those_with(total_acked: int) -> int:
    return sum(metrics.total_acked == total_acked for metrics in StreamConsumer.all_metrics())


async def handle_once(client: StreamClient, count: int) -> None:
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await publish(client, range(count))
        await eventually(lambda: consumer.metrics().total_acked == count)
    assert those_with(count) == 1


async def test_all_metrics_has_every_living_consumer_and_no_dead_one(client: StreamClient) -> None:
    await handle_once(client, 1_237)  # a number that no other test leaves behind
    await eventually(lambda: gc.collect() >= 0 and those_with(1_237) == 0)


async def test_asking_for_the_numbers_asks_nothing_of_redis(client: StreamClient, raw: redis.Redis) -> None:
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    before = raw.info("stats")["total_commands_processed"]
    for _ in range(10):
        consumer.metrics()
        StreamConsumer.all_metrics()
    assert raw.info("stats")["total_commands_processed"] == before + 1


async def test_the_error_hook_gets_the_exception_and_the_messages_that_failed(client: StreamClient) -> None:
    await publish(client, range(4))
    told: list[tuple[str, list[int]]] = []

    async def hook(error: BaseException, messages: list[StreamMessage]) -> None:
        told.append((str(error), [message.data for message in messages]))

    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts > 1 else fail(messages))
    consumer = StreamConsumer(client, STREAM, quick(), handler, error_hook=hook)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
    assert told == [("this cannot be handled", [0, 1, 2, 3])]
    assert consumer.metrics().total_errors == 1


async def test_an_id_that_is_left_out_is_no_error(client: StreamClient) -> None:
    await publish(client, range(4))
    told: list[BaseException] = []

    def hook(error: BaseException, messages: list[StreamMessage]) -> None:
        told.append(error)

    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts > 1 else [])
    consumer = StreamConsumer(client, STREAM, quick(), handler, error_hook=hook)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
    assert told == []
    assert consumer.metrics().total_errors == 0


async def test_hooks_that_fail_change_nothing(client: StreamClient, caplog: pytest.LogCaptureFixture) -> None:
    await publish(client, range(4))

    def broken(*args: object) -> None:
        raise RuntimeError("the hook is broken")

    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts > 1 else fail(messages))
    consumer = StreamConsumer(client, STREAM, quick(), handler, error_hook=broken, on_event=broken)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
    assert handler.runs == dict.fromkeys(range(4), 2)
    assert "the hook is broken" in caplog.text


async def test_a_heartbeat_calls_no_message_lost_that_is_being_buried(client: StreamClient) -> None:
    await publish(client, range(1))
    events: list[Occurrence] = []
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail), on_event=events.append)
    writer = consumer._in_flight.context.dead_letter_writer
    write = writer.write

    async def write_slowly(entry: Rejected, *told: Any) -> Reason | None:
        reason = await write(entry, *told)
        consumer._leases_lost(client.keys(STREAM), [entry.id])  # the heartbeat found it pending with nobody
        await next_turn()
        return reason

    writer.write = write_slowly  # type: ignore[method-assign]
    async with running(consumer):
        await eventually(lambda: EventName.DEAD_LETTERED in {event.name for event in events})
    assert {event.name for event in events} == {EventName.DEAD_LETTERED, EventName.STOPPED}
    assert (consumer.metrics().total_dlq, consumer.metrics().total_lease_lost) == (1, 0)


async def test_events_name_their_stream_and_group(client: StreamClient) -> None:
    await publish(client, range(4))
    events: list[Occurrence] = []
    consumer = StreamConsumer(
        client, STREAM, quick(max_deliveries=2), Recorder(fail), on_event=events.append
    )  # fmt: skip
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 4)
    assert {(event.stream, event.group) for event in events} == {(STREAM, GROUP)}
    assert {event.name for event in events} == {EventName.RETRIED, EventName.DEAD_LETTERED, EventName.STOPPED}
    assert [event.fields["reason"] for event in events if event.name is EventName.DEAD_LETTERED] == [
        "max_deliveries"
    ] * 4


async def test_a_consumer_that_has_ended_leaves_no_thread_behind(client: StreamClient) -> None:
    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    await publish(client, range(10))
    consumer = StreamConsumer(client, STREAM, quick(concurrency=4), message_handler=lambda _: None)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 10)
        assert set(threading.enumerate()) - before
    await consumer.close()
    await eventually(lambda: set(threading.enumerate()) <= before)


async def test_a_consumer_that_was_closed_can_be_used_again(client: StreamClient) -> None:
    consumer = StreamConsumer(client, STREAM, quick(block_ms=0), message_handler=lambda _: None)
    for _ in range(3):
        await publish(client, range(5))
        assert (await consumer.run_once()).acked == 5
        await consumer.close()


# async only
def handle_in_three_loops(url: str) -> int:
    client = StreamClient.from_url(url)
    handler = Recorder(lambda messages: all_ids(messages) if messages[0].attempts > 1 else [])
    consumer = StreamConsumer(client, STREAM, quick(concurrency=3), handler)

    async def handle(total: int) -> None:
        async with running(consumer):
            await publish(client, range(20))
            await eventually(lambda: consumer.metrics().total_acked == total)

    async def handle_and_close(total: int) -> None:
        await handle(total)
        await client.close()

    asyncio.run(handle(20))
    asyncio.run(handle(40))
    asyncio.run(handle_and_close(60))
    return consumer.metrics().total_acked


# Whoever leaves a loop without closing is told so by asyncio.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_client_and_one_consumer_serve_a_second_event_loop(redis_url: str) -> None:
    assert handle_in_three_loops(redis_url) == 60
    gc.collect()


# end async only
