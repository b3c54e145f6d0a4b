"""A lease is kept while its handler works, whatever the handler does to its thread; and no longer than it should be."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient
from penstock.events import EventName
from penstock.queue.queue_delivery import QueueDelivery
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.helpers import threads
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import eventually
from tests.queue.scenes import GROUP, QUEUE, Events, pending, queue_of, quick_gateway, take, taken

pytestmark = pytest.mark.usefixtures("default_server")
LEASE_S = LEASE_MS / 1000  # so long that it does not run out here
SHORT_S = 3.0  # a lease that must run out
BEAT_S = 0.05
RENEW = script("streams/renew").sha.encode()


@pytest.fixture
async def beat_client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def proxied(fault_proxy: FaultProxy) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(fault_proxy.url, socket_timeout=3, socket_connect_timeout=3) as client:
        yield client


def leased(client: StreamClient, **settings: Any) -> Any:
    return quick_gateway(client, **{"message_visibility_timeout_seconds": LEASE_S, **settings})


@pytest.fixture
def leases(raw: redis.Redis) -> Ageing:
    return Ageing(raw, QUEUE, GROUP)


async def outlive(leases: Ageing, count: int, *entry_ids: str) -> None:
    """Lets leases pass, one after the other, and sees that each is renewed."""
    for _ in range(count):
        leases.age(*entry_ids)
        await eventually(lambda: leases.is_renewed(*entry_ids))


async def beats(queue: RedisMessageQueue, leases: Ageing, raw: redis.Redis, count: int = 3) -> None:
    """Waits for so many heartbeats of the queue, which are heard of by a message that it holds meanwhile."""
    before = set(pending(raw))
    await queue.publish(f"message {uuid4()}")
    held = await taken(queue)
    await outlive(leases, count, *(set(pending(raw)) - before))
    await held.end()


# --- kept -------------------------------------------------------------------------------------------


async def test_a_handler_of_five_leases_has_one_delivery(beat_client: StreamClient, leases: Ageing) -> None:
    events = Events()
    queue = queue_of(leased(beat_client, on_event=events), heartbeat_interval_seconds=BEAT_S)
    await queue.publish("a")
    held = await taken(queue)
    await outlive(leases, 5)
    assert not held.processing.lease_lost
    await eventually(lambda: len(events.of(EventName.RENEWED)) >= 5)
    await held.end()
    assert await take(queue) is None


async def test_a_handler_that_blocks_its_thread_keeps_its_message(
    beat_client: StreamClient, leases: Ageing, raw: redis.Redis
) -> None:
    queue = queue_of(leased(beat_client), heartbeat_interval_seconds=BEAT_S)
    await queue.publish("a")
    held = await taken(queue)
    for _ in range(3):
        leases.age()
        threads.eventually(leases.is_renewed)  # which gives the event loop no turn
    assert [count for _, count in pending(raw).values()] == [1]
    await held.end()
    assert raw.xlen(QUEUE) == 0


async def test_a_message_that_is_done_keeps_its_lease_until_the_server_has_settled_it(
    beat_client: StreamClient, leases: Ageing, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(leased(beat_client), heartbeat_interval_seconds=BEAT_S)
    await queue.publish("a")
    held = await taken(queue)
    finish = QueueDelivery.finish_quickly

    async def finish_late(*args: Any) -> Any:
        for _ in range(3):
            leases.age()
            threads.eventually(leases.is_renewed)  # as if the next handler gave the event loop no turn
        return await finish(*args)

    monkeypatch.setattr(QueueDelivery, "finish_quickly", finish_late)
    await held.end()
    assert not held.processing.lease_lost
    assert raw.xlen(QUEUE) == 0


async def test_many_messages_are_kept_at_once(beat_client: StreamClient, leases: Ageing) -> None:
    queue = queue_of(leased(beat_client), heartbeat_interval_seconds=BEAT_S)
    for number in range(20):
        await queue.publish(f"{number}")
    held = [await taken(queue) for _ in range(20)]
    await outlive(leases, 2)
    for one in held:
        await one.end()
    assert not any(one.processing.lease_lost for one in held)


async def test_without_heartbeats_the_lease_runs_out(beat_client: StreamClient, raw: redis.Redis) -> None:
    queue = queue_of(leased(beat_client))
    await queue.publish("a")
    await taken(queue)
    await eventually(lambda: raw.xautoclaim(QUEUE, GROUP, "thief", 100, justid=True))


@pytest.mark.parametrize("ending", ["close", "reset", "black_hole"])
async def test_a_heartbeat_that_is_lost_is_followed_by_another(
    proxied: StreamClient, fault_proxy: FaultProxy, leases: Ageing, ending: Any
) -> None:
    failures: list[int] = []
    queue = queue_of(
        leased(proxied, message_visibility_timeout_seconds=LEASE_S / 2),  # a third of it is waited for a lost reply
        heartbeat_interval_seconds=BEAT_S,
        on_heartbeat_failure=lambda: failures.append(1),
    )
    await queue.publish("a")
    fault = fault_proxy.drop_reply("EVALSHA", containing=RENEW, ending=ending)
    held = await taken(queue)
    await eventually(lambda: fault.has_happened)
    await outlive(leases, 2)
    await held.end()
    assert failures == []


async def test_a_message_whose_entry_vanishes_is_kept_as_long_as_its_handler_runs(
    beat_client: StreamClient, raw: redis.Redis
) -> None:
    failures: list[int] = []
    queue = queue_of(
        leased(beat_client), heartbeat_interval_seconds=BEAT_S, on_heartbeat_failure=lambda: failures.append(1)
    )
    await queue.publish("a")
    held = await taken(queue)
    raw.xtrim(QUEUE, 0, approximate=False)
    retries = beat_client.keys(QUEUE).retries(GROUP)
    for _ in range(3):
        before = raw.zrange(retries, 0, 0, withscores=True)
        await eventually(lambda before=before: raw.zrange(retries, 0, 0, withscores=True) not in (before, []))
    await held.end()
    assert (failures, held.processing.lease_lost) == ([], False)
    assert raw.xpending(QUEUE, GROUP)["pending"] == 0


# --- ended ------------------------------------------------------------------------------------------


async def test_a_settled_message_is_renewed_no_more(
    proxied: StreamClient, fault_proxy: FaultProxy, leases: Ageing, raw: redis.Redis
) -> None:
    queue = queue_of(leased(proxied), heartbeat_interval_seconds=BEAT_S)
    await queue.publish("a")
    held = await taken(queue)
    [entry_id] = pending(raw)
    renewed = fault_proxy.late_request("EVALSHA", 0.001, containing=entry_id.encode())
    await eventually(lambda: renewed.has_happened)
    await held.end()
    await beats(queue, leases, raw, 1)  # one may have been under way
    renewed_again = fault_proxy.late_request("EVALSHA", 0.001, containing=entry_id.encode())
    await beats(queue, leases, raw)
    assert not renewed_again.has_happened


async def test_who_has_lost_the_lease_is_told(beat_client: StreamClient, leases: Ageing, raw: redis.Redis) -> None:
    failures: list[int] = []
    events = Events()
    queue = queue_of(
        leased(beat_client),
        heartbeat_interval_seconds=BEAT_S,
        on_heartbeat_failure=lambda: failures.append(1),
        on_event=events,
    )
    await queue.publish("a")
    held = await taken(queue)
    raw.xclaim(QUEUE, GROUP, "thief", 0, list(pending(raw)), justid=True)
    await eventually(lambda: failures and held.processing.lease_lost)
    await held.end()
    await beats(queue, leases, raw)
    assert failures == [1]
    assert len(events.of(EventName.LEASE_LOST)) == 1
    assert len(events.of(EventName.STALE)) == 1
    assert [holder for holder, _ in pending(raw).values()] == ["thief"]


async def test_a_context_that_was_entered_again_does_not_report_the_lease_of_its_previous_message(
    beat_client: StreamClient,
) -> None:
    failures, gateway = list[int](), leased(beat_client)
    queue = queue_of(gateway, heartbeat_interval_seconds=LEASE_S / 3, on_heartbeat_failure=lambda: failures.append(1))
    processing, lost = queue.process_message(), []
    for message in ("a", "b"):
        await queue.publish(message)
        assert await processing.__aenter__() == message
        (delivery,) = gateway._held.values()
        lost.append(delivery.lease.on_lost)
        if message == "a":
            await processing.__aexit__(None, None, None)
    lost[0]("an outage was longer than the lease")  # it is kept while its message could not be settled
    assert not processing.lease_lost
    lost[1]("another consumer has it")
    await eventually(lambda: failures == [1])
    assert processing.lease_lost
    await processing.__aexit__(None, None, None)


async def test_redis_away_for_longer_than_the_lease_is_told_and_a_late_end_is_refused(
    proxied: StreamClient, beat_client: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    failures: list[int] = []
    queue = queue_of(
        leased(proxied, message_visibility_timeout_seconds=SHORT_S),
        heartbeat_interval_seconds=BEAT_S,
        on_heartbeat_failure=lambda: failures.append(1),
    )
    await queue.publish("a")
    held = await taken(queue)
    fault_proxy.black_hole()
    await eventually(lambda: failures and held.processing.lease_lost)
    other = queue_of(leased(beat_client, message_visibility_timeout_seconds=SHORT_S, message_wait_interval_seconds=60))
    live = await taken(other)
    assert (live.message, live.number) == ("a", 2)
    fault_proxy.heal()
    await held.end()
    assert failures == [1]
    assert len(pending(raw)) == 1
    await live.end()
    assert not live.processing.lease_lost
    assert raw.xlen(QUEUE) == 0


async def test_redis_away_for_longer_than_the_lease_does_not_matter_if_nobody_took_the_message(
    proxied: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    failures: list[int] = []
    queue = queue_of(
        leased(proxied, message_visibility_timeout_seconds=SHORT_S),
        heartbeat_interval_seconds=BEAT_S,
        on_heartbeat_failure=lambda: failures.append(1),
    )
    await queue.publish("a")
    held = await taken(queue)
    fault_proxy.black_hole()
    await eventually(lambda: failures)
    fault_proxy.heal()
    await held.end()
    assert raw.xlen(QUEUE) == 0


async def test_everybody_is_told_however_many_leases_run_out(
    proxied: StreamClient, beat_client: StreamClient, fault_proxy: FaultProxy, leases: Ageing, raw: redis.Redis
) -> None:
    failures: list[int] = []
    queue = queue_of(
        leased(proxied, message_visibility_timeout_seconds=SHORT_S),
        heartbeat_interval_seconds=BEAT_S,
        on_heartbeat_failure=lambda: failures.append(1),
    )
    for number in range(10):
        await queue.publish(f"{number}")
    held = [await taken(queue) for _ in range(10)]
    fault_proxy.black_hole()
    await eventually(lambda: len(failures) == 10)
    # Nothing is tried beyond the end of the leases: when Redis is back, no heartbeat is heard of.
    fault_proxy.heal()
    seen = fault_proxy.count("EVALSHA")
    await beats(queue_of(leased(beat_client), heartbeat_interval_seconds=BEAT_S), leases, raw)
    assert fault_proxy.count("EVALSHA") == seen
    assert all(one.processing.lease_lost for one in held)


async def test_a_hung_handler_is_renewed_no_longer_than_it_may_take(beat_client: StreamClient) -> None:
    failures: list[int] = []
    lease = {"message_visibility_timeout_seconds": SHORT_S, "message_wait_interval_seconds": 60}
    queue = queue_of(
        leased(beat_client, **lease),
        heartbeat_interval_seconds=BEAT_S,
        max_processing_seconds=0.5,
        on_heartbeat_failure=lambda: failures.append(1),
    )
    other = queue_of(leased(beat_client, **lease), heartbeat_interval_seconds=BEAT_S)
    await queue.publish("a")
    hung = await taken(queue)
    again = await taken(other)
    assert (again.message, again.number) == ("a", 2)
    await eventually(lambda: failures == [1] and hung.processing.lease_lost)
    await hung.end()
    await again.end()
    assert not again.processing.lease_lost


async def test_a_callback_that_takes_its_time_costs_no_other_lease(
    beat_client: StreamClient, leases: Ageing, raw: redis.Redis
) -> None:
    has_pondered = threading.Event()

    def ponder() -> None:
        for _ in range(3):
            leases.age(other)
            threads.eventually(lambda: leases.is_renewed(other))
        has_pondered.set()

    queue = queue_of(leased(beat_client), heartbeat_interval_seconds=BEAT_S, on_heartbeat_failure=ponder)
    await queue.publish("a")
    await queue.publish("b")
    lost = await taken(queue)
    kept = await taken(queue)
    stolen, other = pending(raw)
    raw.xclaim(QUEUE, GROUP, "keeper", 0, [stolen], justid=True)
    await eventually(has_pondered.is_set)
    assert lost.processing.lease_lost
    assert not kept.processing.lease_lost
    await kept.end()


async def test_a_callback_that_fails_disturbs_nothing(beat_client: StreamClient, raw: redis.Redis) -> None:
    def fail() -> None:
        raise ValueError("as ordered")

    queue = queue_of(leased(beat_client), heartbeat_interval_seconds=BEAT_S, on_heartbeat_failure=fail)
    await queue.publish("a")
    held = await taken(queue)
    raw.xclaim(QUEUE, GROUP, "thief", 0, list(pending(raw)), justid=True)
    await eventually(lambda: held.processing.lease_lost)
    await queue.publish("b")
    await (await taken(queue)).end()
