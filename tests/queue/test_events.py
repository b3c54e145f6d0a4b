"""on_event hears of every transition of a message, and cannot disturb any."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.errors import FatalError, TransientError
from penstock.events import Event, EventName
from penstock.testing import FaultProxy
from tests.helpers.aio import Event as Signal
from tests.helpers.aio import eventually, join, start, wait_for
from tests.queue.stage import COMPLETED, NAME, fail, in_flight, make_queue, of_kind, take

NOISE = {EventName.CONSUMER_REMOVED, EventName.TRIMMED}


class Witness:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        """What happened, in order."""
        return [event.name.value for event in self.events if event.name not in NOISE]

    def fields(self, name: str) -> dict[str, Any]:
        """What was told of the only event of a name."""
        [event] = [event for event in self.events if event.name == name]
        return dict(event.fields)


async def test_the_life_of_a_message_that_is_completed(client: StreamClient, raw: redis.Redis) -> None:
    witness = Witness()
    queue = RedisMessageQueue(NAME, client=client, on_event=witness)
    await queue.publish("hello")
    [(entry_id, _)] = raw.xrange(NAME)
    await queue.publish("hello")
    await take(queue)
    assert witness.names == ["published", "duplicate", "claimed", "completed"]
    assert witness.fields("published") == witness.fields("duplicate") == {"id": entry_id.decode()}
    assert witness.fields("claimed") == {
        "id": entry_id.decode(), "delivery_count": 1, "attempts": 1, "is_again": False,
    }  # fmt: skip
    assert witness.fields("completed") == {"id": entry_id.decode()}
    assert {(event.stream, event.group) for event in witness.events} == {(NAME, "queue")}


@pytest.mark.usefixtures("default_server")
async def test_a_log_changes_nothing_about_the_events(client: StreamClient) -> None:
    witness = Witness()
    queue = make_queue(client, on_event=witness, enable_completed_queue=True, deduplication=False)
    await queue.publish("hello")
    await take(queue)
    await take(queue)
    assert witness.names == ["published", "claimed", "completed", "empty"]


async def test_the_life_of_a_message_that_dies(client: StreamClient) -> None:
    witness = Witness()
    queue = make_queue(client, on_event=witness, max_delivery_count=2, message_wait_interval_seconds=60)
    await queue.publish("hello")
    await fail(queue, ValueError("no such customer"))
    await fail(queue, ValueError("no such customer"))
    assert witness.names == ["published", "claimed", "failed", "retried", "claimed", "failed", "dead_lettered"]
    failed = [event.fields for event in of_kind(witness.events, EventName.FAILED)]
    assert [fields["attempts"] for fields in failed] == [1, 2]
    assert failed[0]["error"] == "ValueError('no such customer')"
    retried = witness.fields("retried")
    assert retried["counts"] is True
    assert 0 < retried["delay_s"] < 1
    dead = witness.fields("dead_lettered")
    assert (dead["reason"], dead["error"]) == ("max_deliveries", "ValueError('no such customer')")
    ids = {event.fields["id"] for event in witness.events}
    assert len(ids) == 1


@pytest.mark.usefixtures("default_server")
async def test_fatal_terminal_and_interrupted(client: StreamClient) -> None:
    witness = Witness()
    queue = make_queue(client, on_event=witness, deduplication=False)
    await queue.publish("hello")
    await fail(queue, FatalError("never"))
    assert witness.names == ["published", "claimed", "failed", "dead_lettered"]
    assert witness.fields("dead_lettered")["reason"] == "fatal"

    witness = Witness()
    queue = make_queue(client, on_event=witness, on_failure="terminal")
    await queue.publish("hello")
    await fail(queue)
    assert witness.names == ["published", "claimed", "failed", "discarded"]

    witness = Witness()
    queue = make_queue(client, on_event=witness, deduplication=False)
    await queue.publish("hello")
    await fail(queue, KeyboardInterrupt())
    assert witness.names == ["published", "claimed", "retried"], "it was not the message's fault"
    assert witness.fields("retried")["counts"] is False


@pytest.mark.usefixtures("default_server")
async def test_a_message_of_a_silent_consumer_is_reclaimed_and_the_late_one_is_stale(
    client: StreamClient, raw: redis.Redis
) -> None:
    witness, late = Witness(), Witness()
    slow = make_queue(client, on_event=late, message_visibility_timeout_seconds=0.2)
    quick = make_queue(
        client, on_event=witness, message_visibility_timeout_seconds=0.2, message_wait_interval_seconds=60
    )
    await slow.publish("hello")
    processing = slow.process_message()
    async with processing, quick.process_message() as message:
        assert message == "hello"
    assert witness.names == ["reclaimed", "claimed", "completed"]
    assert witness.fields("claimed")["is_again"] is True
    assert late.names == ["published", "claimed", "stale"]
    assert late.fields("stale")["what"] == "completed"
    assert processing.lease_lost
    assert in_flight(raw) == []


async def test_a_renewed_lease_and_one_that_is_lost(client: StreamClient, raw: redis.Redis) -> None:
    witness, lost = Witness(), Signal()
    queue = make_queue(
        client, on_event=witness, message_visibility_timeout_seconds=30, heartbeat_interval_seconds=0.05,
        on_heartbeat_failure=lost.set,
    )  # fmt: skip
    await queue.publish("hello")
    async with queue.process_message():
        await eventually(lambda: len(of_kind(witness.events, EventName.RENEWED)) >= 2)
        raw.xclaim(NAME, "queue", "somebody else", 0, in_flight(raw))
        await wait_for(lost)
    lease_lost = witness.fields("lease_lost")
    assert "another consumer" in lease_lost["reason"]
    assert lease_lost["ids"] == [witness.fields("stale")["id"]]
    assert witness.fields("stale")["what"] == "completed"
    await queue.close()


@pytest.mark.usefixtures("default_server")
async def test_outages_are_told_and_so_is_what_could_not_be_settled(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    witness = Witness()
    async with StreamClient.from_url(fault_proxy.url) as client:
        queue = make_queue(client, on_event=witness, retry_budget_seconds=2, enable_completed_queue=True)
        await queue.publish("hello")

        async def work() -> None:
            async with queue.process_message():
                fault_proxy.refuse()
                fault_proxy.reset_all()

        with pytest.raises(TransientError):
            await work()
        assert "trying_again" in witness.names
        assert witness.names[-1] == "unsettled"
        fault_proxy.heal()
        await queue.publish("another")
        assert await eventually(lambda: take(queue)) == "another"
    assert raw.xlen(COMPLETED) == 2, "the next call settles it"
    assert raw.xlen(NAME) == 0


@pytest.mark.usefixtures("default_server")
async def test_missing_bodies_and_lost_groups_are_told(client: StreamClient, raw: redis.Redis) -> None:
    witness = Witness()
    queue = make_queue(
        client, on_event=witness, message_visibility_timeout_seconds=0.1, message_wait_interval_seconds=1
    )
    await queue.publish("hello")
    holder = make_queue(client)
    processing = holder.process_message()
    await processing.__aenter__()
    raw.xtrim(NAME, maxlen=0)

    async def is_missed() -> bool:
        await take(queue)
        return "missing" in witness.names

    await eventually(is_missed)
    assert len(witness.fields("missing")["ids"]) == 1
    raw.xgroup_destroy(NAME, "queue")
    await queue.publish("again")
    assert await take(queue) == "again"
    assert "group_lost" in witness.names


async def test_a_listener_that_raises_disturbs_nothing(client: StreamClient, raw: redis.Redis) -> None:
    def listen(event: Event) -> None:
        raise RuntimeError(f"cannot bear {event.name}")

    queue = make_queue(client, on_event=listen, enable_completed_queue=True, message_wait_interval_seconds=60)
    await queue.publish("hello")
    await fail(queue)
    assert await take(queue) == "hello"
    assert await queue.drain() is True
    assert (raw.xlen(NAME), raw.xlen(COMPLETED)) == (0, 1)


@pytest.mark.usefixtures("default_server")
async def test_a_queue_over_a_gateway_tells_of_its_own_and_of_the_gateways_events(client: StreamClient) -> None:
    witness = Witness()
    gateway = RedisGateway(redis_client=client, message_visibility_timeout_seconds=30)
    queue = RedisMessageQueue(NAME, gateway=gateway, on_event=witness)
    other = RedisMessageQueue("other", gateway=gateway)
    await queue.publish("hello")
    await other.publish("not heard")
    await take(queue)
    await take(other)
    assert witness.names == ["published", "claimed", "completed"]


@pytest.mark.usefixtures("default_server")
async def test_events_of_side_by_side_consumers_are_all_told(client: StreamClient) -> None:
    witness = Witness()
    queue = make_queue(client, on_event=witness)
    for n in range(20):
        await queue.publish(f"message {n}")
    for task in [start(take, queue) for _ in range(20)]:
        await join(task)
    counts = {name: witness.names.count(name) for name in ("published", "claimed", "completed")}
    assert counts == {"published": 20, "claimed": 20, "completed": 20}


@pytest.mark.usefixtures("default_server")
async def test_a_queue_over_a_gateway_is_told_of_outages(fault_proxy: FaultProxy) -> None:
    witness = Witness()
    async with StreamClient.from_url(fault_proxy.url) as client:
        queue = RedisMessageQueue(NAME, gateway=RedisGateway(redis_client=client), on_event=witness)
        await queue.publish("before")
        fault_proxy.drop_reply("EVALSHA")
        assert await queue.publish("hello") is True
    assert witness.names == ["published", "trying_again", "published"]
    assert {event.stream for event in witness.events} == {NAME}
