"""A message has one live holder: its lease is renewed while a handler runs, and a holder that lost it is told."""

from __future__ import annotations

import threading

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.helpers import threads
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import DEADLINE_S, Event, eventually, pause, wait_for
from tests.streams.stage import (
    DEAD_LETTERS,
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    of_kind,
    pending_ids,
    publish,
    quick,
    running,
)

# async only
import asyncio  # isort: skip
# end async only


def steal(raw: redis.Redis, *entry_ids: str) -> None:
    """Moves messages to another consumer, as a peer does when it believes their holder dead."""
    assert raw.xclaim(STREAM, GROUP, "thief", 0, list(entry_ids), justid=True)


@pytest.fixture
def leases(raw: redis.Redis) -> Ageing:
    return Ageing(raw, STREAM, GROUP)


def owner_of(raw: redis.Redis, entry_id: str) -> str:
    [row] = raw.xpending_range(STREAM, GROUP, entry_id, entry_id, 1)
    return str(row["consumer"].decode())


# --- kept -----------------------------------------------------------------------------------------


async def test_a_handler_that_takes_five_leases_gets_its_messages_once(
    client: StreamClient, raw: redis.Redis, leases: Ageing
) -> None:
    await publish(client, range(15))
    counts: list[tuple[int, int]] = []
    go_on = Event()

    async def slow(messages: list[StreamMessage]) -> list[str]:
        counts.extend((message.data, message.delivery_count) for message in messages)
        if messages[0].data == 0:
            await wait_for(go_on)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=50, recovery_interval_ms=50, concurrency=1)
    holder, peer = StreamConsumer(client, STREAM, config, slow), StreamConsumer(client, STREAM, config, Recorder())
    async with running(holder):
        await eventually(lambda: holder.metrics().total_read == 15)
        async with running(peer):
            for _ in range(5):
                leases.age()
                # The ten in the handler and the five that wait behind it.
                assert len(pending_ids(raw)) == 15
                await eventually(leases.is_renewed)
            go_on.set()
            await eventually(lambda: holder.metrics().total_acked == 15)
    assert sorted(counts) == [(n, 1) for n in range(15)]
    assert peer.metrics().total_read == holder.metrics().total_lease_lost == 0


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(client: StreamClient, leases: Ageing) -> None:
    await publish(client, [1])
    renewed: list[bool] = []

    async def busy(messages: list[StreamMessage]) -> list[str]:
        renewed.extend(outlive(leases, 5))
        return all_ids(messages)

    config = quick(min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=50)
    consumer = StreamConsumer(client, STREAM, config, busy)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1)
    assert renewed == [True] * 5


@pytest.mark.usefixtures("default_server")
async def test_a_plain_function_keeps_its_lease(client: StreamClient, leases: Ageing) -> None:
    await publish(client, [1])
    renewed: list[bool] = []

    def slow(message: StreamMessage) -> None:
        renewed.extend(outlive(leases, 5))

    config = quick(min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=50)
    consumer = StreamConsumer(client, STREAM, config, message_handler=slow)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1)
    assert renewed == [True] * 5


def outlive(leases: Ageing, count: int) -> list[bool]:
    """Lets leases pass without giving anything else in this thread a turn; tells which of them were renewed."""
    renewed = []
    for _ in range(count):
        leases.age()
        threads.eventually(leases.is_renewed)
        renewed.append(True)
    return renewed


@pytest.mark.usefixtures("default_server")
async def test_renewing_does_not_raise_the_delivery_count(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    go_on = Event()

    async def slow(messages: list[StreamMessage]) -> list[str]:
        await wait_for(go_on)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=20), slow)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_read)
        raw.config_resetstat()
        await eventually(lambda: raw.info("commandstats").get("cmdstat_xclaim", {}).get("calls", 0) >= 5)
        [row] = raw.xpending_range(STREAM, GROUP, "-", "+", 1)
        go_on.set()
    assert row["times_delivered"] == 1


@pytest.mark.usefixtures("default_server")
async def test_a_heartbeat_whose_reply_never_comes_is_sent_again_while_the_lease_holds(fault_proxy: FaultProxy) -> None:
    renew = script("streams/renew").sha.encode()
    async with StreamClient.from_url(fault_proxy.url, socket_timeout=120) as client:
        await publish(client, [1])
        go_on = Event()

        async def slow(messages: list[StreamMessage]) -> list[str]:
            await wait_for(go_on)
            return all_ids(messages)

        consumer = StreamConsumer(client, STREAM, quick(heartbeat_interval_ms=50), slow)
        mute = fault_proxy.drop_reply("EVALSHA", containing=renew, ending="black_hole")
        again = fault_proxy.drop_reply("EVALSHA", nth=2, containing=renew)
        async with running(consumer):
            await eventually(lambda: mute.has_happened)
            await eventually(lambda: again.has_happened)
            go_on.set()
            await eventually(lambda: consumer.metrics().total_acked == 1)
    assert consumer.metrics().total_lease_lost == 0


# --- lost -----------------------------------------------------------------------------------------


async def test_a_plain_handler_sees_that_its_lease_is_lost_and_what_it_says_is_refused(
    client: StreamClient, raw: redis.Redis
) -> None:
    [entry_id] = await publish(client, [1])
    began = threading.Event()
    flags: list[bool] = []
    events: list[Occurrence] = []

    def zombie(message: StreamMessage) -> None:
        began.set()
        threads.eventually(lambda: message.lease_lost)
        flags.append(message.lease_lost)

    config = quick(heartbeat_interval_ms=20)
    consumer = StreamConsumer(client, STREAM, config, message_handler=zombie, on_event=events.append)
    async with running(consumer):
        await eventually(began.is_set)
        steal(raw, entry_id)
        await eventually(lambda: flags)
    assert flags == [True]
    assert owner_of(raw, entry_id) == "thief"
    assert consumer.metrics().total_acked == 0
    assert consumer.metrics().total_lease_lost == 1
    assert [event.fields["ids"] for event in of_kind(events, EventName.LEASE_LOST)] == [[entry_id]]


# async only
@pytest.mark.usefixtures("default_server")
async def test_an_async_handler_is_cancelled_when_its_lease_is_lost_and_the_consumer_goes_on(
    client: StreamClient, raw: redis.Redis
) -> None:
    [entry_id] = await publish(client, [1])
    began, seen = Event(), []

    async def zombie(message: StreamMessage) -> None:
        began.set()
        try:
            if message.data == 1:
                await pause(DEADLINE_S)
        except asyncio.CancelledError:
            seen.append(message.lease_lost)
            raise

    config = quick(heartbeat_interval_ms=20, concurrency=1)
    consumer = StreamConsumer(client, STREAM, config, message_handler=zombie)
    async with running(consumer):
        await wait_for(began)
        steal(raw, entry_id)
        await eventually(lambda: seen)
        await publish(client, [2])
        await eventually(lambda: consumer.metrics().total_acked == 1)
    assert seen == [True]
    assert pending_ids(raw) == [entry_id]
    assert consumer.metrics().total_errors == 0


@pytest.mark.usefixtures("default_server")
async def test_a_handler_that_swallows_its_cancellation_can_be_cancelled_the_next_time(
    client: StreamClient, raw: redis.Redis
) -> None:
    ids = await publish(client, [1, 2])
    began, cancelled = [], []

    async def stubborn(message: StreamMessage) -> None:
        began.append(message.data)
        try:
            await pause(DEADLINE_S)
        except asyncio.CancelledError:
            cancelled.append(message.data)

    config = quick(heartbeat_interval_ms=20, concurrency=1)
    consumer = StreamConsumer(client, STREAM, config, message_handler=stubborn)
    async with running(consumer):
        await eventually(lambda: began == [1])
        steal(raw, ids[0])
        await eventually(lambda: began == [1, 2])
        steal(raw, ids[1])
        await eventually(lambda: cancelled == [1, 2])
    assert pending_ids(raw) == ids
    assert consumer.metrics().total_acked == 0


# end async only


async def test_a_late_ack_is_refused_by_the_server_even_before_the_heartbeat_notices(
    client: StreamClient, raw: redis.Redis
) -> None:
    [entry_id] = await publish(client, [1])
    events: list[Occurrence] = []

    def zombie(messages: list[StreamMessage]) -> list[str]:
        steal(raw, entry_id)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=60_000)
    consumer = StreamConsumer(client, STREAM, config, Recorder(zombie), on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_lease_lost == 1)
    assert owner_of(raw, entry_id) == "thief"
    assert consumer.metrics().total_acked == 0
    assert [event.fields["ids"] for event in of_kind(events, EventName.LEASE_LOST)] == [[entry_id]]


@pytest.mark.parametrize("waiting", [0, 1, 3])
async def test_a_late_ack_is_refused_however_many_acks_travel_together_and_messages_wait_for_their_retry(
    client: StreamClient, raw: redis.Redis, waiting: int
) -> None:
    await publish(client, [-1] * waiting)
    stolen: list[str] = []

    def zombie(messages: list[StreamMessage]) -> list[str]:
        lost = [message.id for message in messages if message.data >= 0][: max(1, waiting)]
        if lost:
            steal(raw, *lost)
        stolen.extend(lost)
        return [message.id for message in messages if message.data >= 0]

    config = quick(batch_size=60, min_idle_claim_ms=60_000, retry_initial_delay_ms=60_000, retry_max_delay_ms=60_000)
    consumer = StreamConsumer(client, STREAM, config, Recorder(zombie))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_retried == waiting)
        await publish(client, range(3_000))
        await eventually(lambda: consumer.metrics().total_acked + consumer.metrics().total_lease_lost >= 3_000)
        pending = {row["message_id"].decode() for row in raw.xpending_range(STREAM, GROUP, "-", "+", 5_000, "thief")}
    assert pending == set(stolen)
    assert consumer.metrics().total_lease_lost == len(stolen)


@pytest.mark.usefixtures("default_server")
async def test_the_neighbours_of_a_lost_message_are_acknowledged(client: StreamClient, raw: redis.Redis) -> None:
    ids = await publish(client, range(3))

    def zombie(messages: list[StreamMessage]) -> list[str]:
        steal(raw, ids[1])
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=60_000), Recorder(zombie))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 2)
    assert pending_ids(raw) == [ids[1]]


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("max_deliveries", [1, 3])
async def test_the_failure_of_a_zombie_neither_delays_nor_buries_a_message_of_another(
    client: StreamClient, raw: redis.Redis, max_deliveries: int
) -> None:
    [entry_id] = await publish(client, [1])

    def zombie(messages: list[StreamMessage]) -> list[str]:
        steal(raw, entry_id)
        raise ValueError("too late")

    config = quick(min_idle_claim_ms=60_000, max_deliveries=max_deliveries)
    consumer = StreamConsumer(client, STREAM, config, Recorder(zombie))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_lease_lost == 1)
    assert owner_of(raw, entry_id) == "thief"
    assert not raw.exists(DEAD_LETTERS, f"{{{STREAM}}}:retries:{GROUP}")
    assert (consumer.metrics().total_retried, consumer.metrics().total_dlq) == (0, 0)


@pytest.mark.usefixtures("default_server")
async def test_a_message_that_was_lost_before_it_began_again_is_not_run(client: StreamClient, raw: redis.Redis) -> None:
    ids = await publish(client, [1, 2])
    runs: list[int] = []

    def handle(messages: list[StreamMessage]) -> list[str]:
        runs.extend(message.data for message in messages)
        if messages[0].attempts == 1:
            return []
        if len(runs) == 3:  # the first of the two that come again, each alone: the other waits behind it
            steal(raw, *(entry_id for entry_id in ids if entry_id != messages[0].id))
        return all_ids(messages)

    config = quick(min_idle_claim_ms=60_000, max_deliveries=2, retry_initial_delay_ms=50, retry_jitter=0)
    consumer = StreamConsumer(client, STREAM, config, Recorder(handle))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked + consumer.metrics().total_lease_lost == 2)
    assert len(runs) == 3
    assert len(pending_ids(raw)) == 1
