"""Trimming removes what every group is done with and nothing else; only consumers that hold nothing are removed."""

from __future__ import annotations

import json

import pytest
import redis

from penstock import ConsumerGroup, StreamClient, StreamConsumer
from penstock.events import Event as Occurrence
from penstock.events import EventName
from tests.helpers.aio import eventually
from tests.helpers.commandstats import calls
from tests.streams.stage import GROUP, STREAM, Recorder, of_kind, pending_ids, publish, quick, read_as, running

pytestmark = pytest.mark.every_server

OTHER = "auditors"


def numbers(raw: redis.Redis) -> list[int]:
    return [json.loads(fields[b"data"]) for _, fields in raw.xrange(STREAM)]


def finish(raw: redis.Redis, group: str, count: int) -> list[str]:
    """Reads and acknowledges so many entries of a group."""
    [(_, rows)] = raw.xreadgroup(group, "someone", {STREAM: ">"}, count=count)
    raw.xack(STREAM, group, *(entry_id for entry_id, _ in rows))
    return [entry_id.decode() for entry_id, _ in rows]


@pytest.fixture
async def group(client: StreamClient) -> ConsumerGroup:
    made = ConsumerGroup(client, STREAM, GROUP)
    await made.ensure()
    return made


# --- trimming -------------------------------------------------------------------------------------


async def test_trimming_keeps_the_newest_finished_entries_that_it_is_told_to(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(50))
    finish(raw, GROUP, 40)
    assert await group.trim(15) == 25
    assert numbers(raw) == list(range(25, 50))
    assert await group.trim(15) == 0
    assert await group.trim(0) == 15
    assert numbers(raw) == list(range(40, 50))


async def test_trimming_keeps_what_any_of_two_groups_needs(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await ConsumerGroup(client, STREAM, OTHER).ensure()
    await publish(client, range(50))
    finish(raw, GROUP, 50)
    assert await group.trim(0) == 0
    finish(raw, OTHER, 20)
    assert await group.trim(0) == 20
    assert numbers(raw) == list(range(20, 50))


async def test_trimming_keeps_everything_from_the_oldest_pending_entry_on(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(50))
    held = read_as(raw, "someone")
    raw.xack(STREAM, GROUP, *held[:10], *held[11:])
    assert await group.trim(0) == 10
    assert numbers(raw) == list(range(10, 50))
    assert pending_ids(raw) == [held[10]]


async def test_a_group_that_was_set_back_gets_what_it_wants_to_read_again(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(20))
    ids = finish(raw, GROUP, 20)
    raw.xgroup_setid(STREAM, GROUP, ids[4])
    assert await group.trim(0) == 5
    assert numbers(raw) == list(range(5, 20))


async def test_without_any_group_nothing_is_trimmed(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(20))
    assert await ConsumerGroup(client, STREAM, GROUP).trim(0) == 0
    assert numbers(raw) == list(range(20))


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(("finished", "unread"), [(15_000, 100), (3_500, 12_500), (13_000, 11_000)])
async def test_trimming_is_exact_whatever_the_size(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup, finished: int, unread: int
) -> None:
    await publish(client, range(finished + unread))
    finish(raw, GROUP, finished)
    assert await group.trim(1_000) == finished - 1_000
    assert raw.xlen(STREAM) == 1_000 + unread
    assert (await group.lag()).count == unread


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("first", [10**15 - 3, 2**53 - 3, 2**63 - 3, 2**64 - 10])
async def test_trimming_is_exact_whatever_the_ids(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup, first: int
) -> None:
    for n in range(20):
        raw.xadd(STREAM, {"data": n}, id=f"7-{first + n}" if first + n < 2**64 else f"8-{first + n - 2**64}")
    for done in range(20):
        assert await group.trim(0) == min(done, 1)
        assert numbers(raw) == list(range(done, 20))
        assert (await group.lag()).count == 20 - done
        finish(raw, GROUP, 1)


# --- dead consumers -------------------------------------------------------------------------------


async def test_only_silent_consumers_that_hold_nothing_are_removed(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(4))
    raw.xack(STREAM, GROUP, *read_as(raw, "gone", 1))
    held = read_as(raw, "gone with messages")
    await eventually(lambda: all(info["idle"] > 1_000 for info in raw.xinfo_consumers(STREAM, GROUP)))
    await publish(client, [4])
    raw.xack(STREAM, GROUP, *read_as(raw, "busy"))
    assert await group.remove_dead_consumers(1_000) == ["gone"]  # long enough for a busy machine to get here
    assert await group.remove_dead_consumers(600_000) == []
    names = {info["name"] for info in raw.xinfo_consumers(STREAM, GROUP)}
    assert names == {b"gone with messages", b"busy"}
    assert pending_ids(raw) == held


# --- by the consumer's timer ----------------------------------------------------------------------


async def chores(raw: redis.Redis, count: int = 5) -> None:
    """Waits until consumers have taken so many turns at the chores."""
    wanted = calls(raw, "set") + count
    await eventually(lambda: calls(raw, "set") >= wanted)


async def test_a_running_consumer_trims_by_its_timer(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Occurrence] = []
    await ConsumerGroup(client, STREAM, OTHER).ensure()
    await publish(client, range(100))
    config = quick(retention_interval_ms=50, max_stream_size=10)
    consumer = StreamConsumer(client, STREAM, config, Recorder(), on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 100)
        await chores(raw)
        assert raw.xlen(STREAM) == 100  # the auditors have not seen one of them
        finish(raw, OTHER, 60)
        await eventually(lambda: raw.xlen(STREAM) == 50)
        finish(raw, OTHER, 40)
        await eventually(lambda: raw.xlen(STREAM) == 10)
    assert numbers(raw) == list(range(90, 100))
    assert sum(event.fields["count"] for event in of_kind(events, EventName.TRIMMED)) == 90


async def test_a_running_consumer_removes_dead_ones_by_its_timer_and_never_one_with_messages(
    client: StreamClient, raw: redis.Redis
) -> None:
    events: list[Occurrence] = []
    await publish(client, range(5))
    await ConsumerGroup(client, STREAM, GROUP).ensure()
    raw.xack(STREAM, GROUP, *read_as(raw, "gone", 1))
    held = read_as(raw, "gone with messages")
    config = quick(retention_interval_ms=50, consumer_ttl_ms=100, min_idle_claim_ms=60_000)
    consumer = StreamConsumer(client, STREAM, config, Recorder(), on_event=events.append)
    async with running(consumer):
        await eventually(lambda: of_kind(events, EventName.CONSUMER_REMOVED))
        await chores(raw)
    assert pending_ids(raw) == held
    assert [event.fields["names"] for event in of_kind(events, EventName.CONSUMER_REMOVED)] == [["gone"]]


@pytest.mark.usefixtures("default_server")
async def test_one_of_several_consumers_does_the_chores_for_all(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Occurrence] = []
    config = quick(retention_interval_ms=100, max_stream_size=0)
    consumers = [StreamConsumer(client, STREAM, config, Recorder(), on_event=events.append) for _ in range(3)]
    async with running(*consumers):
        await publish(client, range(100))
        await eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 100)
        await eventually(lambda: raw.xlen(STREAM) == 0)
    assert sum(event.fields["count"] for event in of_kind(events, EventName.TRIMMED)) == 100
