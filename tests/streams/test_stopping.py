"""stop() makes run() return: what runs may finish, what has not begun goes back at once and has lost nothing."""

from __future__ import annotations

import random
import threading

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage
from penstock.delivery.group_commands import Parking
from penstock.errors import ConnectionLost
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.testing import FaultProxy
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import Event, eventually, is_done, join, pause, start, wait_for
from tests.streams.stage import GROUP, STREAM, Recorder, all_ids, of_kind, pending_ids, publish, quick, running

FOREVER_MS = 60_000  # no lease runs out in these tests: what comes back was handed back


async def test_stop_ends_a_run_that_waits_for_messages(client: StreamClient) -> None:
    consumer = StreamConsumer(client, STREAM, quick(block_ms=FOREVER_MS), Recorder())
    run = start(consumer.run)
    await publish(client, [1])
    await eventually(lambda: consumer.metrics().total_acked == 1)
    consumer.stop()
    await join(run)  # which waits for less than the read would


@pytest.mark.usefixtures("default_server")
async def test_stop_may_come_from_another_thread(client: StreamClient) -> None:
    consumer = StreamConsumer(client, STREAM, quick(block_ms=FOREVER_MS), Recorder())
    run = start(consumer.run)
    await eventually(lambda: consumer._is_open)
    thread = threading.Thread(target=consumer.stop, daemon=True)
    thread.start()
    await join(run)
    thread.join(60)
    assert not thread.is_alive(), "stop() did not return"


@pytest.mark.usefixtures("default_server")
async def test_stop_may_come_from_the_handler_itself(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(30))
    handler = Recorder(lambda messages: consumer.stop() or all_ids(messages))
    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=FOREVER_MS), handler)
    await join(start(consumer.run))
    assert consumer.metrics().total_acked == len(handler.seen)
    assert len(pending_ids(raw)) == consumer.metrics().total_handed_back


@pytest.mark.usefixtures("default_server")
async def test_what_is_handed_back_is_in_flight_until_the_server_has_answered(client: StreamClient) -> None:
    await publish(client, range(30))
    began, go_on = Event(), Event()

    async def slow(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await wait_for(go_on)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=FOREVER_MS), slow)
    park, in_flight = consumer._commands.park, consumer._in_flight
    renewed: list[bool] = []

    async def park_and_look(parkings: list[Parking]) -> list[bool]:
        answers = await park(parkings)
        renewed.append({parking.id for parking in parkings} <= set(in_flight.unsettled_ids()))
        return answers

    consumer._commands.park = park_and_look  # type: ignore[method-assign,assignment]
    run = start(consumer.run)
    await wait_for(began)
    await eventually(lambda: consumer.metrics().total_read == 30)
    consumer.stop()
    await eventually(lambda: consumer.metrics().total_handed_back == 20)
    assert len(in_flight.unsettled_ids()) == 10
    go_on.set()
    await join(run)
    assert all(renewed)
    assert in_flight.unsettled_ids() == []


@pytest.mark.usefixtures("default_server")
async def test_a_consumer_that_was_stopped_can_run_again(client: StreamClient) -> None:
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    for n in range(3):
        async with running(consumer):
            await publish(client, [n])
            await eventually(lambda: consumer.metrics().total_acked == n + 1)  # noqa: B023  # asked within the turn


async def test_messages_that_have_not_begun_go_back_at_once_and_burn_no_attempt(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(30))
    began, go_on = Event(), Event()
    events: list[Occurrence] = []
    first: list[int] = []

    async def slow(messages: list[StreamMessage]) -> list[str]:
        first.extend(message.data for message in messages)
        began.set()
        await wait_for(go_on)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS)
    consumer = StreamConsumer(client, STREAM, config, slow, on_event=events.append)
    run = start(consumer.run)
    await wait_for(began)
    await eventually(lambda: consumer.metrics().total_read == 30)
    consumer.stop()
    await eventually(lambda: of_kind(events, EventName.HANDED_BACK))
    await consumer._recovery.take_due()  # as a look does that began before the stop: it takes nothing back
    # While the first one still waits for its handler, the next one has everything else.
    handler = Recorder()
    other = StreamConsumer(client, STREAM, config, handler)
    async with running(other):
        await eventually(lambda: other.metrics().total_acked == 20)
        assert not is_done(run)
        go_on.set()
        await join(run)
    assert first == list(range(10))
    assert sorted(handler.seen) == list(range(10, 30))
    assert set(handler.counts) == {(1, 1)}
    assert consumer.metrics().total_acked == 10
    assert consumer.metrics().total_handed_back == 20
    assert sum(event.fields["count"] for event in of_kind(events, EventName.HANDED_BACK)) == 20
    assert of_kind(events, EventName.STOPPED)
    assert pending_ids(raw) == []


async def test_a_retry_that_waits_in_the_process_keeps_its_counts_when_it_goes_back(client: StreamClient) -> None:
    await publish(client, range(3))
    began_again, go_on = Event(), Event()

    async def fail_once_then_wait(messages: list[StreamMessage]) -> list[str]:
        if messages[0].attempts == 1:
            raise ValueError("once")
        began_again.set()
        await wait_for(go_on)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS, batch_size=1, retry_initial_delay_ms=100, retry_jitter=0)
    consumer = StreamConsumer(client, STREAM, config, fail_once_then_wait)
    run = start(consumer.run)
    await wait_for(began_again)
    await eventually(lambda: consumer.metrics().total_read == 6)  # all three came again, and one of them runs
    consumer.stop()
    handler = Recorder()
    other = StreamConsumer(client, STREAM, config, handler)
    async with running(other):
        await eventually(lambda: other.metrics().total_acked == 2)
        go_on.set()
        await join(run)
    assert handler.counts == [(2, 2), (2, 2)]
    assert consumer.metrics().total_acked == 1


async def test_a_handler_that_outlasts_the_grace_loses_its_message_to_another_without_an_attempt(
    client: StreamClient,
) -> None:
    await publish(client, [1])
    began, go_on = Event(), Event()

    async def endless(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await wait_for(go_on)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS, shutdown_grace_ms=50)
    consumer = StreamConsumer(client, STREAM, config, endless)
    run = start(consumer.run)
    await wait_for(began)
    consumer.stop()
    await join(run)
    handler = Recorder()
    other = StreamConsumer(client, STREAM, config, handler)
    async with running(other):
        await eventually(lambda: other.metrics().total_acked == 1)
    go_on.set()
    assert handler.counts == [(1, 1)]
    assert consumer.metrics().total_acked == 0


async def test_what_a_lost_reply_left_with_the_consumer_goes_back_too(
    client: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    config = quick(min_idle_claim_ms=FOREVER_MS, block_ms=FOREVER_MS)
    async with StreamClient.from_url(fault_proxy.url) as shaky:
        consumer = StreamConsumer(shaky, STREAM, config, Recorder())
        run = start(consumer.run)
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        await publish(client, [1])
        await eventually(lambda: consumer.metrics().total_acked == 1)
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        fault_proxy.drop_reply("XREADGROUP", ending="black_hole")
        await publish(client, [2])  # for the read that waits already
        await eventually(lambda: consumer.metrics().total_acked == 2)
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        await publish(client, range(3, 6))  # handed out, and nobody hears of it
        await eventually(lambda: len(pending_ids(raw)) == 3)
        consumer.stop()
        await join(run)
    handler = Recorder()
    other = StreamConsumer(client, STREAM, config, handler)
    async with running(other):
        await eventually(lambda: other.metrics().total_acked == 3)
    assert handler.seen == [3, 4, 5]
    assert set(handler.counts) == {(1, 1)}


@pytest.mark.usefixtures("default_server")
async def test_a_hung_plain_function_keeps_neither_run_nor_the_process_from_ending(client: StreamClient) -> None:
    await publish(client, [1])
    before = set(threading.enumerate())
    began, go_on = threading.Event(), threading.Event()

    def hung(message: StreamMessage) -> None:
        began.set()
        go_on.wait(60)

    config = quick(min_idle_claim_ms=FOREVER_MS, shutdown_grace_ms=50)
    consumer = StreamConsumer(client, STREAM, config, message_handler=hung)
    run = start(consumer.run)
    await eventually(began.is_set)
    consumer.stop()
    await join(run)
    left = [thread for thread in set(threading.enumerate()) - before if "penstock" in thread.name]
    go_on.set()
    assert left
    assert all(thread.daemon for thread in left)  # the interpreter waits for all others


@pytest.mark.parametrize("seed", range(2))
async def test_stopping_at_random_moments_strands_nothing(client: StreamClient, raw: redis.Redis, seed: int) -> None:
    chance = random.Random(seed)
    ended: list[int] = []

    async def handler(messages: list[StreamMessage]) -> list[str]:
        await pause(chance.uniform(0, 0.004))
        ended.extend(message.data for message in messages)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS, batch_size=5, block_ms=20, max_deliveries=50)
    consumers = [StreamConsumer(client, STREAM, config, handler) for _ in range(31)]
    for turn, consumer in enumerate(consumers[:-1]):
        await publish(client, range(turn * 5, turn * 5 + 5))
        run = start(consumer.run)
        await pause(chance.uniform(0, 0.02))  # a random moment: there is nothing to wait for
        consumer.stop()
        await join(run)
    async with running(consumers[-1]):
        await eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 150)
    assert sorted(ended) == list(range(150))  # and whoever stops in peace runs nothing twice
    assert pending_ids(raw) == []


@pytest.mark.usefixtures("default_server")
async def test_nothing_new_begins_after_stop(client: StreamClient) -> None:
    await publish(client, range(30))
    began, go_on = Event(), Event()
    seen: list[int] = []

    async def slow(messages: list[StreamMessage]) -> list[str]:
        seen.extend(message.data for message in messages)
        began.set()
        await wait_for(go_on)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=FOREVER_MS), slow)
    run = start(consumer.run)
    await wait_for(began)
    await eventually(lambda: consumer.metrics().total_read == 30)
    consumer.stop()
    await publish(client, range(30, 40))
    await eventually(lambda: consumer.metrics().total_handed_back == 20)
    assert not is_done(run)
    go_on.set()
    await join(run)
    assert seen == list(range(10))


@pytest.mark.usefixtures("default_server")
async def test_leases_are_renewed_while_a_handler_finishes_in_its_grace(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    began, go_on = Event(), Event()

    async def slow(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await wait_for(go_on)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=50, shutdown_grace_ms=FOREVER_MS)
    consumer = StreamConsumer(client, STREAM, config, slow)
    leases = Ageing(raw, STREAM, GROUP)
    run = start(consumer.run)
    await wait_for(began)
    consumer.stop()
    for _ in range(3):
        leases.age()
        await eventually(leases.is_renewed)
    go_on.set()
    await join(run)
    assert consumer.metrics().total_acked == 1


@pytest.mark.usefixtures("default_server")
async def test_what_has_finished_is_not_handed_back_if_it_could_not_be_acknowledged_before(
    client: StreamClient, raw: redis.Redis
) -> None:
    began, go_on = Event(), Event()

    async def slow(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await wait_for(go_on)
        return all_ids(messages)

    await publish(client, range(3))
    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=FOREVER_MS, block_ms=FOREVER_MS), slow)
    acks, reader = consumer._acks, consumer._reader
    flush, kill_abandoned_read = acks.flush, reader.kill_abandoned_read

    async def away() -> None:
        raise ConnectionLost("away")

    async def come_back() -> None:  # before the last look at what is pending
        acks.flush = flush  # type: ignore[method-assign]
        await kill_abandoned_read()

    acks.flush = away  # type: ignore[method-assign]
    run = start(consumer.run)
    await wait_for(began)
    await eventually(lambda: raw.info("clients")["blocked_clients"])  # no later read carries acknowledgements
    reader.kill_abandoned_read = come_back  # type: ignore[method-assign]
    go_on.set()
    await eventually(lambda: len(consumer._in_flight.finished) == 3)
    consumer.stop()
    await join(run)
    metrics = consumer.metrics()
    assert (metrics.total_acked, metrics.total_handed_back) == (3, 0)
    assert pending_ids(raw) == []
