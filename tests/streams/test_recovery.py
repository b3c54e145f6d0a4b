"""What a dead consumer held goes to the living, once its lease has run out and not before."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import DeadLetters, StreamClient, StreamConsumer, StreamMessage
from penstock.delivery.group_commands import GroupCommands, Parking
from penstock.errors import ConnectionLost
from penstock.events import Event as Occurrence
from penstock.events import EventName
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import Event, eventually, pause, wait_for
from tests.helpers.commandstats import calls
from tests.streams.stage import (
    DEAD_LETTERS,
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    expire,
    of_kind,
    pending_ids,
    publish,
    quick,
    read_as,
    recoveries,
    running,
)

pytestmark = pytest.mark.every_server


@pytest.fixture
async def orphans(client: StreamClient, raw: redis.Redis) -> list[str]:
    """Thirty messages that a consumer has read before it died."""
    await publish(client, range(30))
    raw.xgroup_create(STREAM, GROUP, "0")
    return read_as(raw, "dead")


async def test_the_messages_of_a_dead_consumer_are_handled_by_another(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    handler = Recorder()
    events: list[Occurrence] = []
    expire(raw)
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 30)
    assert sorted(handler.seen) == list(range(30))
    assert set(handler.counts) == {(2, 2)}
    assert pending_ids(raw) == []
    reclaimed = [entry_id for event in of_kind(events, EventName.RECLAIMED) for entry_id in event.fields["ids"]]
    assert sorted(reclaimed) == sorted(orphans)
    assert consumer.metrics().total_reclaimed == 30


async def test_nothing_is_taken_before_its_lease_has_run_out(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), Recorder())
    async with running(consumer):
        await recoveries(raw)
    assert consumer.metrics().total_read == 0
    assert pending_ids(raw) == orphans


async def test_an_entry_that_a_living_consumer_has_forgotten_is_found_too(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    handler = Recorder()
    expire(raw)
    consumer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), handler)

    def is_found() -> bool:
        raw.xreadgroup(GROUP, "dead", {STREAM: ">"}, count=1)  # not dead at all: it only forgot what it holds
        return consumer.metrics().total_acked == 30

    async with running(consumer):
        await eventually(is_found)
    assert sorted(handler.seen) == list(range(30))


async def test_several_consumers_share_the_orphans_and_each_is_handled_once(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    handler = Recorder()
    expire(raw)
    config = quick(recovery_interval_ms=50)
    consumers = [StreamConsumer(client, STREAM, config, handler) for _ in range(3)]
    async with running(*consumers):
        await eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 30)
    assert sorted(handler.seen) == list(range(30))


@pytest.mark.usefixtures("default_server")
async def test_a_process_that_comes_back_under_its_name_takes_its_messages_at_once(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    handler = Recorder()
    events: list[Occurrence] = []
    config = quick(worker_name="dead", min_idle_claim_ms=60_000)
    consumer = StreamConsumer(client, STREAM, config, handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 30)
    assert sorted(handler.seen) == list(range(30))
    assert sum(event.fields["count"] for event in of_kind(events, EventName.SWEPT)) == 30


@pytest.mark.usefixtures("default_server")
async def test_a_consumer_takes_over_no_more_than_its_handlers_can_begin(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    begun, may_go_on = [], Event()

    async def handle(message: StreamMessage) -> None:
        begun.append(message.data)
        await wait_for(may_go_on)

    expire(raw)
    config = quick(recovery_interval_ms=20, concurrency=2)
    consumer = StreamConsumer(client, STREAM, config, message_handler=handle)
    async with running(consumer):
        await eventually(lambda: len(begun) == 2)
        await pause(0.2)  # nothing may happen, and nothing says when it would
        left = raw.xpending_range(STREAM, GROUP, "-", "+", 100, consumername="dead")
        may_go_on.set()
        await eventually(lambda: consumer.metrics().total_acked == 30)
    assert len(left) >= 30 - 2 * 2, "what waits behind a handler that kills the process waits for another lease"


@pytest.mark.usefixtures("default_server")
async def test_nothing_else_runs_beside_the_last_run_of_a_message_whose_consumers_died(
    client: StreamClient, raw: redis.Redis, orphans: list[str]
) -> None:
    now: set[int] = set()
    beside: list[set[int]] = []

    async def handle(message: StreamMessage) -> None:
        now.add(message.data)
        for _ in range(5):
            await pause(0.002)
            if 7 in now:
                beside.append(now - {7})
        now.discard(message.data)

    expire(raw)
    raw.xclaim(STREAM, GROUP, "dead", 0, [orphans[7]], idle=2 * LEASE_MS, retrycount=4, justid=True)
    config = quick(recovery_interval_ms=20, concurrency=4, max_deliveries=5)
    consumer = StreamConsumer(client, STREAM, config, message_handler=handle)
    async with running(consumer):
        await publish(client, range(100, 200))
        await eventually(lambda: consumer.metrics().total_acked == 130)
    assert beside
    assert set[int]().union(*beside) == set(), "each of them might be what the consumers died of"


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    ("limit", "before", "during", "why"),
    [
        (3, 1, 2, "a repeated run counts when it begins"),
        (3, 2, 2, "a last run may have neighbours: if one of them ends the process, it runs again"),
        (1, 0, 1, "with one delivery nothing runs twice"),
    ],
)
async def test_what_the_server_counts_while_a_message_runs_whose_holders_lived(
    client: StreamClient, raw: redis.Redis, orphans: list[str], limit: int, before: int, during: int, why: str
) -> None:
    seen: list[tuple[int, int]] = []

    async def handle(message: StreamMessage) -> None:
        [row] = raw.xpending_range(STREAM, GROUP, message.id, message.id, 1)
        seen.append((message.delivery_count, row["times_delivered"]))

    raw.xack(STREAM, GROUP, *orphans[1:])
    raw.xclaim(STREAM, GROUP, "handed-back", 0, [orphans[0]], retrycount=before, justid=True)
    raw.zadd(client.keys(STREAM).retries(GROUP), {orphans[0]: 0})
    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=limit), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1)
    assert seen == [(before + 1, during)], why


# --- poison ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [[0], [150], [299], [5, 17, 100, 101, 250]])
async def test_poison_anywhere_among_300_pending_entries_is_found(
    client: StreamClient, raw: redis.Redis, places: list[int]
) -> None:
    await publish(client, range(300))
    raw.xgroup_create(STREAM, GROUP, "0")
    ids = read_as(raw, "dead")
    for place in places:  # handed out three times, and each time the process died
        raw.xclaim(STREAM, GROUP, "dead", 0, [ids[place]], retrycount=3, justid=True)
    expire(raw)
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(batch_size=10, recovery_interval_ms=20), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked + consumer.metrics().total_dlq == 300)
    letters = await DeadLetters(client, STREAM).list(1_000)
    assert {letter.source_id for letter in letters} == {ids[place] for place in places}
    assert {(letter.reason, letter.error) for letter in letters} == {("max_deliveries", "WorkerDied")}
    assert "in attempt 3" in letters[0].error_text
    assert sorted(handler.seen) == [n for n in range(300) if n not in places]
    assert pending_ids(raw) == []


async def test_a_slow_last_attempt_is_not_buried_by_busy_peers(client: StreamClient, raw: redis.Redis) -> None:
    [entry_id] = await publish(client, [0])
    leases = Ageing(raw, STREAM, GROUP)
    runs: list[int] = []
    go_on = Event()

    async def slow(messages: list[StreamMessage]) -> list[str]:
        runs.extend(message.data for message in messages)
        if messages[0].data == 0:
            await wait_for(go_on)
        return all_ids(messages)

    config = quick(
        min_idle_claim_ms=LEASE_MS, heartbeat_interval_ms=50, recovery_interval_ms=20, max_deliveries=1, concurrency=2
    )  # fmt: skip
    holder = StreamConsumer(client, STREAM, config, slow)
    peers = [StreamConsumer(client, STREAM, config, slow) for _ in range(2)]
    async with running(holder):
        await eventually(lambda: holder.metrics().total_read == 1)
        async with running(*peers):
            for _ in range(3):
                leases.age(entry_id)
                await publish(client, range(1, 20))
                await eventually(lambda: leases.is_renewed(entry_id))
            go_on.set()
            await eventually(lambda: pending_ids(raw) == [])
    assert not raw.exists(DEAD_LETTERS)
    assert runs.count(0) == 1
    assert holder.metrics().total_lease_lost == 0


@pytest.mark.usefixtures("default_server")
async def test_max_claim_passes_bounds_the_work_of_one_recovery(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(250))
    raw.xgroup_create(STREAM, GROUP, "0")
    read_as(raw, "dead")
    expire(raw)
    handler = Recorder()
    config = quick(batch_size=100, max_claim_passes=1)
    consumer = StreamConsumer(client, STREAM, config, handler)
    report = await consumer.run_once()
    await consumer.close()
    assert report.reclaimed == 100


# --- settled after a lost reply -------------------------------------------------------------------


@pytest.mark.parametrize("taken", ["take_due", "take", "recover"])
async def test_a_message_that_was_taken_again_is_not_settled_by_a_try_before_that(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    await publish(client, ["one"])
    raw.xgroup_create(STREAM, GROUP, "0")
    [entry_id] = read_as(raw, "me")
    commands = GroupCommands(client, client.keys(STREAM), GROUP, "me", DEAD_LETTERS)

    async def be_cut_off(*_: Any) -> Any:
        raise ConnectionLost("the request was lost")

    with monkeypatch.context() as patched:
        patched.setattr(client, "run", be_cut_off)
        with pytest.raises(ConnectionLost):
            await commands.finish(entry_id, None, (), 0, must_log=False)
    if taken == "take_due":
        await commands.park([Parking(entry_id, 0, 1, 1)])
    if taken == "recover":
        raw.xclaim(STREAM, GROUP, "dead", 0, [entry_id], idle=LEASE_MS, justid=True)
    take = {
        "take_due": lambda: commands.take_due(1),
        "take": lambda: commands.take([entry_id], True),
        "recover": lambda: commands.recover(LEASE_MS, 1, "-", 10),
    }
    *_, [claim], _ = await take[taken]()
    assert claim.id == entry_id
    raw.xack(STREAM, GROUP, entry_id)  # by a consumer that took it over
    assert await commands.finish(entry_id, None, (), 0, must_log=False) == 0


# --- messages that wait hide others ---------------------------------------------------------------


async def test_thousands_that_wait_for_their_retry_do_not_hide_what_a_dead_consumer_had_in_hand(
    client: StreamClient, raw: redis.Redis
) -> None:
    # A lease of a millisecond, which has run out by the second look at the latest.
    await publish(client, range(6_000))
    raw.xgroup_create(STREAM, GROUP, "0")
    held = read_as(raw, "dead", 6_000)
    raw.zadd(client.keys(STREAM).retries(GROUP), dict.fromkeys(held[:-1], 1e15))
    commands = GroupCommands(client, client.keys(STREAM), GROUP, "living", DEAD_LETTERS)
    page, cursor, found = 1, "-", list[str]()

    async def look() -> bool:
        nonlocal cursor
        cursor, claims, _ = await commands.recover(1, 16, cursor, page)
        found.extend(claim.id for claim in claims)
        return bool(claims)

    await eventually(look)
    assert found == held[-1:]
    before = calls(raw, "xpending")
    assert not await look()
    assert calls(raw, "xpending") == before + 1, "what waits is passed over once, and then only a page is looked at"

    await publish(client, ["again"])
    [late] = read_as(raw, "dead")  # it was not dead
    raw.xclaim(STREAM, GROUP, "dead", 0, [late], idle=LEASE_MS, justid=True)
    cursor = " ".join([cursor.partition(" ")[0], *(_seen_long_ago(word) for word in cursor.split(" ")[1:])])
    await eventually(look)
    assert found == [held[-1], late]


def _seen_long_ago(word: str) -> str:
    mark, seen_ms, place = word.split(":")
    return f"{mark}:{int(seen_ms) - LEASE_MS}:{place}"
