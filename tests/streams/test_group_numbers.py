"""The numbers of a group are true, also where the server's own are wrong or missing."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

import penstock.delivery.group as group_module
from penstock import ConsumerGroup, ConsumerInfo, Lag, StreamClient, StreamConsumer
from penstock.delivery.janitor import count_after
from penstock.errors import GroupLost
from tests.helpers.aio import eventually
from tests.helpers.round_trips import count_round_trips
from tests.streams.stage import DEAD_LETTERS, GROUP, STREAM, Recorder, calls, fail, publish, quick, read_as, running

pytestmark = pytest.mark.every_server


@pytest.fixture
async def group(client: StreamClient) -> ConsumerGroup:
    made = ConsumerGroup(client, STREAM, GROUP)
    await made.ensure()
    return made


# --- life -----------------------------------------------------------------------------------------


async def test_ensure_creates_the_group_at_the_beginning_of_the_stream(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(3))
    await ConsumerGroup(client, STREAM, GROUP).ensure("graveyard", "dead_letter_writers")
    assert len(read_as(raw, "someone")) == 3
    assert [info["name"] for info in raw.xinfo_groups("graveyard")] == [b"dead_letter_writers"]


@pytest.mark.usefixtures("default_server")
async def test_ensure_asks_once_until_it_is_reset(client: StreamClient, raw: redis.Redis, group: ConsumerGroup) -> None:
    before = calls(raw, "evalsha") + calls(raw, "eval")
    await group.ensure()
    assert calls(raw, "evalsha") + calls(raw, "eval") == before
    raw.xgroup_destroy(STREAM, GROUP)
    await group.ensure()
    assert raw.xinfo_groups(STREAM) == []
    group.reset()
    await group.ensure()
    assert [info["name"] for info in raw.xinfo_groups(STREAM)] == [GROUP.encode()]


@pytest.mark.usefixtures("default_server")
async def test_ensure_leaves_a_group_that_exists_where_it_is(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(3))
    read_as(raw, "someone")
    await ConsumerGroup(client, STREAM, GROUP).ensure()
    assert read_as(raw, "someone") == []


# --- lag ------------------------------------------------------------------------------------------


async def test_the_lag_is_what_has_not_been_handed_out(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    assert await group.lag() == Lag(0, 0.0)
    await publish(client, range(20))
    assert (await group.lag()).count == 20
    read_as(raw, "someone", 5)
    assert (await group.lag()).count == 15
    read_as(raw, "someone")
    assert await group.lag() == Lag(0, 0.0)


async def test_a_group_has_work_until_all_is_read_and_settled(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int | None]()

    async def noted(*args: Any) -> Any:
        counts.append(args[3])
        return await count_after(*args)

    monkeypatch.setattr(group_module, "count_after", noted)
    assert not await group.has_work()
    first, second = await publish(client, range(2))
    assert await group.has_work()
    read_as(raw, "someone", 1)
    raw.xack(STREAM, GROUP, first)
    raw.xdel(STREAM, second)
    assert not await group.has_work(), "what is left was read, and settled"
    [third] = await publish(client, [3])
    read_as(raw, "someone", 1)
    assert await group.has_work()
    raw.xack(STREAM, GROUP, third)
    assert not await group.has_work()
    assert set(counts) == {1}, "a long backlog is not counted"


async def test_the_lag_is_true_after_entries_were_deleted(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    ids = await publish(client, range(20))
    read_as(raw, "someone", 3)
    raw.xdel(STREAM, ids[0], ids[7], ids[8])
    assert (await group.lag()).count == 15


async def test_the_lag_is_true_after_unread_entries_were_trimmed(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(150))
    raw.xtrim(STREAM, maxlen=100, approximate=False)
    assert (await group.lag()).count == 100
    read_as(raw, "someone", 40)
    assert (await group.lag()).count == 60


@pytest.mark.usefixtures("default_server")
async def test_a_long_lag_is_counted_to_its_end(client: StreamClient, group: ConsumerGroup) -> None:
    await publish(client, range(7_001))
    assert (await group.lag()).count == 7_001


async def test_the_age_of_the_lag_is_that_of_the_oldest_unread_entry(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    now_ms = int(time.time() * 1000)
    raw.xadd(STREAM, {"data": "1"}, id=f"{now_ms - 90_000}-0")
    raw.xadd(STREAM, {"data": "2"}, id=f"{now_ms - 60_000}-0")
    raw.xadd(STREAM, {"data": "3"})
    assert 90 <= (await group.lag()).age_s < 120
    read_as(raw, "someone", 1)
    assert 60 <= (await group.lag()).age_s < 90


# --- stats ----------------------------------------------------------------------------------------


async def test_stats_tell_everything_about_the_group(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    ids = await publish(client, range(20))
    held = read_as(raw, "one", 8)
    read_as(raw, "other", 4)
    raw.xack(STREAM, GROUP, *held[:3])
    raw.xadd(DEAD_LETTERS, {"data": "1", "dlq_reason": "fatal"})
    raw.xclaim(STREAM, GROUP, "one", 0, [held[3]], idle=5_000, justid=True)
    stats = await group.stats()
    assert (stats.stream, stats.group, stats.stream_length) == (STREAM, GROUP, 20)
    assert (stats.group_pel_size, stats.lag, stats.dlq_length) == (9, 8, 1)
    assert stats.last_delivered_id == ids[11]
    assert {(consumer.name, consumer.pending) for consumer in stats.consumers} == {("one", 5), ("other", 4)}
    assert isinstance(stats.consumers[0], ConsumerInfo)
    assert 5_000 <= stats.oldest_pending_ms < 35_000
    assert stats.lag_age_s >= 0


@pytest.mark.usefixtures("default_server")
async def test_stats_count_what_waits_for_its_retry(client: StreamClient) -> None:
    await publish(client, range(3))
    config = quick(retry_initial_delay_ms=60_000, retry_max_delay_ms=60_000)
    consumer = StreamConsumer(client, STREAM, config, Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_retried == 3)
    stats = await ConsumerGroup(client, STREAM, GROUP).stats()
    assert (stats.retries_waiting, stats.group_pel_size) == (3, 3)


async def test_stats_of_a_group_that_does_not_exist_say_so(client: StreamClient, raw: redis.Redis) -> None:
    with pytest.raises(GroupLost):
        await ConsumerGroup(client, STREAM, GROUP).stats()
    raw.xadd(STREAM, {"data": "1"})
    with pytest.raises(GroupLost, match=GROUP):
        await ConsumerGroup(client, STREAM, GROUP).stats()


async def test_pending_details_are_the_oldest_first(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(10))
    held = read_as(raw, "one", 6)
    raw.xclaim(STREAM, GROUP, "other", 0, [held[1]], idle=7_000, retrycount=4, justid=True)
    entries = await group.pending_details(3)
    assert [(entry.id, entry.consumer, entry.delivery_count, entry.retry_at_ms) for entry in entries] == [
        (held[0], "one", 1, None),
        (held[1], "other", 4, None),
        (held[2], "one", 1, None),
    ]
    assert 7_000 <= entries[1].idle_ms < 37_000
    assert len(await group.pending_details()) == 6


# --- health ---------------------------------------------------------------------------------------


async def test_a_consumer_that_holds_nothing_may_be_silent(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, [1])
    raw.xack(STREAM, GROUP, *read_as(raw, "gone home"))
    await eventually(lambda: raw.xinfo_consumers(STREAM, GROUP)[0]["idle"] > 20)
    health = await group.health_check(max_idle_ms=10)
    assert (health["healthy"], health["issues"]) == (True, [])
    assert health["stats"].group_pel_size == 0


async def test_a_silent_consumer_that_holds_messages_is_an_issue(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(3))
    read_as(raw, "stuck")
    await eventually(lambda: raw.xinfo_consumers(STREAM, GROUP)[0]["idle"] > 20)
    health = await group.health_check(max_idle_ms=10)
    assert not health["healthy"]
    assert "stuck" in health["issues"][0]
    assert (await group.health_check(max_idle_ms=600_000))["healthy"]


async def test_a_long_lag_is_an_issue_even_where_the_server_does_not_know_it(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    ids = await publish(client, range(20))
    raw.xdel(STREAM, ids[5])  # from here on the server cannot tell the lag
    health = await group.health_check(max_lag=18)
    assert not health["healthy"]
    assert "lag 19" in health["issues"][0]
    assert (await group.health_check(max_lag=19))["healthy"]


@pytest.mark.parametrize("has_stream", [True, False])
async def test_a_group_that_does_not_exist_is_an_issue(
    client: StreamClient, raw: redis.Redis, has_stream: bool
) -> None:
    if has_stream:
        raw.xadd(STREAM, {"data": "1"})
    health = await ConsumerGroup(client, STREAM, GROUP).health_check()
    assert not health["healthy"]
    assert health["issues"]


async def test_pending_details_are_two_questions_however_many_wait(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, range(50))
    held = read_as(raw, "one", 50)
    raw.zadd(client.keys(STREAM).retries(GROUP), {held[7]: 1_794_700_800_123})
    trips = count_round_trips(monkeypatch, await client.connection(STREAM))
    entries = await group.pending_details(50)
    assert len(trips) == 2
    assert [entry.id for entry in entries if entry.retry_at_ms is not None] == [held[7]]
    assert entries[7].retry_at_ms == 1_794_700_800_123


@pytest.mark.usefixtures("default_server")
async def test_names_of_others_that_are_not_utf_8_break_nothing(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    await publish(client, range(2))
    raw.xgroup_create(STREAM, b"\xfe", "0")
    raw.execute_command("XREADGROUP", "GROUP", GROUP, b"\xff", "COUNT", 1, "STREAMS", STREAM, ">")
    raw.xgroup_createconsumer(STREAM, GROUP, b"idle \xff")
    assert (await group.lag()).count == 1
    assert {consumer.name for consumer in (await group.stats()).consumers} == {"\ufffd", "idle \ufffd"}
    assert [entry.consumer for entry in await group.pending_details()] == ["\ufffd"]
    assert (await group.health_check())["healthy"]
    await eventually(lambda: all(info["idle"] > 1 for info in raw.xinfo_consumers(STREAM, GROUP)))
    assert await group.remove_dead_consumers(1) == ["idle \ufffd"]
