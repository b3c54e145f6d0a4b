"""The lag of a group is true on every server, whatever was trimmed and deleted."""

from __future__ import annotations

import random
import time

import pytest
import redis

import penstock.ops.groups as groups_module
import penstock.ops.lag as lag_module
import penstock.ops.streams as streams_module
from penstock import Lag, StreamClient
from penstock.errors import NotFound, ServerError
from penstock.ops import GroupInfo, Inspector
from penstock.ops.lag import LIST_STEPS, GroupPosition, Rates, drain_s, rates
from penstock.redis.translate import error_reply
from tests.helpers.commandstats import calls
from tests.helpers.round_trips import count_round_trips
from tests.ops.stage import GROUP, STREAM, add, read_as

pytestmark = pytest.mark.every_server
OPERATIONS = ("add", "read", "delete", "delete", "trim", "ack", "seek")


def brute_force(raw: redis.Redis) -> tuple[int, str]:
    """Returns how many entries the group has not been handed, and the first of them, by reading all."""
    [info] = raw.xinfo_groups(STREAM)
    unread = raw.xrange(STREAM, f"({info['last-delivered-id'].decode()}")
    return len(unread), unread[0][0].decode() if unread else ""


def change(raw: redis.Redis, chance: random.Random) -> None:
    what, present = chance.choice(OPERATIONS), [row[0] for row in raw.xrange(STREAM)]
    if what == "add":
        add(raw, chance.randrange(1, 30))
    elif what == "read":
        read_as(raw, "someone", chance.randrange(1, 20))
    elif what == "delete" and present:
        raw.xdel(STREAM, *chance.sample(present, min(len(present), chance.randrange(1, 5))))
    elif what == "trim" and present:
        raw.xtrim(STREAM, maxlen=chance.randrange(len(present) + 1), approximate=False)
    elif what == "ack":
        pending = raw.xpending_range(STREAM, GROUP, "-", "+", 10)
        if pending:
            raw.xack(STREAM, GROUP, *(row["message_id"] for row in pending))
    elif what == "seek" and present:
        raw.xgroup_setid(STREAM, GROUP, chance.choice([*present, "0", "$"]))


@pytest.mark.parametrize("seed", range(4))
async def test_the_lag_is_what_a_brute_force_count_finds(inspector: Inspector, raw: redis.Redis, seed: int) -> None:
    chance = random.Random(seed)
    add(raw, 20)
    read_as(raw, "someone", 5)
    for _ in range(60):
        change(raw, chance)
        count, first = brute_force(raw)
        [group] = await inspector.groups.of(STREAM)
        assert group.lag.is_exact
        assert group.lag.count == count
        assert first or group.lag.age_s == 0
        assert (await inspector.groups.lag(STREAM, GROUP)).count == count


async def test_a_long_backlog_is_counted_from_the_end_that_is_near(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 3_000)
    read_as(raw, "someone", 50)
    raw.xtrim(STREAM, maxlen=2_960, approximate=False)
    [group] = await inspector.groups.of(STREAM)
    assert (group.lag.count, group.lag.is_exact) == (2_950, True)


def change_much(raw: redis.Redis, chance: random.Random) -> None:
    """Changes a stream that is longer than one script counts: some steps at once, each of hundreds of entries."""
    what, present = chance.choice(OPERATIONS), [row[0] for row in raw.xrange(STREAM)]
    if what == "add" or not present:
        add(raw, chance.randrange(1, 2_000))
    elif what == "read":
        read_as(raw, "someone", chance.randrange(1, 3_000))
    elif what == "delete":
        raw.xdel(STREAM, *chance.sample(present, min(len(present), chance.randrange(1, 300))))
    elif what == "trim":
        raw.xtrim(STREAM, maxlen=chance.randrange(len(present) // 2, len(present) + 1), approximate=False)
    elif what == "seek":
        raw.xgroup_setid(STREAM, GROUP, chance.choice([*present, "0", "$"]))


def server_ms(raw: redis.Redis) -> float:
    seconds, microseconds = raw.time()
    return seconds * 1000 + microseconds / 1000


@pytest.mark.parametrize("steps", [0, LIST_STEPS])
async def test_the_lag_of_a_long_stream_is_true_or_an_upper_bound(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(streams_module, "LIST_STEPS", steps)
    chance = random.Random(steps)
    add(raw, 6_000)
    read_as(raw, "someone", 2_500)
    for _ in range(25):
        change_much(raw, chance)
        count, first = brute_force(raw)
        began_ms = server_ms(raw)
        found, _, _ = await inspector.streams.overview()
        ended_ms = server_ms(raw)
        [group] = found[0].groups
        assert group.lag.is_exact or (steps == 0 and group.lag.count >= count)
        assert group.lag.count == count or not group.lag.is_exact
        first_ms = int(first.partition("-")[0]) if first else 0
        if first:  # the age is that of the oldest unread entry, at some moment of the call
            assert int(began_ms) - first_ms <= round(group.lag.age_s * 1000) <= ended_ms - first_ms
        else:
            assert group.lag == Lag(0, 0.0)


async def test_every_number_of_a_lag_agrees_after_a_trim(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 20_000)
    read_as(raw, "someone", 19_700)
    raw.xtrim(STREAM, maxlen=19_000, approximate=False)
    [listed] = await inspector.groups.lags()
    [sampled] = (await inspector.overview()).streams[0].groups
    counted = await inspector.groups.lag(STREAM, GROUP)
    assert (listed.count, listed.is_exact) == (counted.count, counted.is_exact) == (300, True)
    assert sampled.lag == Lag(300, sampled.lag.age_s)


@pytest.mark.usefixtures("default_server")
async def test_what_is_counted_in_a_list_is_bounded(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_module, "_MANY", 300)
    for name in ("a", "b", "c"):
        add(raw, 5_000, name)
        read_as(raw, "someone", 2_500, name)
        raw.xdel(name, raw.xrange(name, count=1)[0][0])
    await inspector.streams.overview()  # loads the scripts
    before = calls(raw, "evalsha")
    found, _, _ = await inspector.streams.overview()
    assert calls(raw, "evalsha") - before <= LIST_STEPS + 3 * 3  # a look and the first counts of each stream
    assert [stream.groups[0].lag.is_exact for stream in found] == [False] * 3
    assert all(stream.groups[0].lag.count >= 2_500 for stream in found)
    assert [lag.count for lag in await inspector.groups.lags()] == [2_500] * 3


async def test_the_age_is_that_of_the_oldest_unread_entry(inspector: Inspector, raw: redis.Redis) -> None:
    now_ms = int(time.time() * 1000)
    for age_s in (100, 50, 10):
        raw.xadd(STREAM, {"data": "x"}, id=f"{now_ms - age_s * 1000}-0")
    read_as(raw, "someone", 1)
    assert (await inspector.groups.lag(STREAM, GROUP)).age_s == pytest.approx(50, abs=5)


async def test_rates_come_from_two_samples(inspector: Inspector, raw: redis.Redis, client: StreamClient) -> None:
    add(raw, 10)
    read_as(raw, "someone", 4)
    lag = await inspector.groups.lag(STREAM, GROUP, over_s=0.01)
    assert (lag.count, lag.in_per_s, lag.out_per_s, lag.drain_s) == (6, 0, 0, None)


async def test_a_fast_inflow_is_counted_whole(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(raw, 1)
    read_as(raw, "someone", 1)

    async def pause(_: float) -> None:
        add(raw, 1_000)

    monkeypatch.setattr(groups_module, "pause", pause)
    monkeypatch.setattr(lag_module, "_MANY", 100)
    lag = await inspector.groups.lag(STREAM, GROUP, over_s=1)
    assert (lag.count, lag.out_per_s, lag.drain_s) == (1_000, 0, None)


async def test_a_fast_inflow_into_a_full_stream_is_counted_whole(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(raw, 3_000)
    read_as(raw, "someone", 3_000)

    async def pause(_: float) -> None:
        add(raw, 2_000)
        read_as(raw, "someone", 1_000)
        raw.xtrim(STREAM, maxlen=3_000, approximate=False)

    monkeypatch.setattr(groups_module, "pause", pause)
    monkeypatch.setattr(lag_module, "_MANY", 500)
    lag = await inspector.groups.lag(STREAM, GROUP, over_s=1)
    assert lag.in_per_s is not None
    assert lag.out_per_s is not None
    assert lag.in_per_s / lag.out_per_s == pytest.approx(2.0)


@pytest.mark.usefixtures("default_server")
async def test_a_stream_with_huge_entries_has_a_lag_without_rates(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 2, data=b"x" * 3_000_000)
    read_as(raw, "someone", 1)
    lag = await inspector.groups.lag(STREAM, GROUP, over_s=0.01)
    assert (lag.count, lag.in_per_s) == (1, None)


@pytest.mark.usefixtures("default_server")
async def test_a_stream_that_is_deleted_between_two_samples_is_not_found(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(raw, 1)
    read_as(raw, "someone", 1)
    counted = inspector.groups.info

    async def info(stream: str, group: str) -> GroupInfo:
        found = await counted(stream, group)
        raw.delete(STREAM)
        return found

    monkeypatch.setattr(inspector.groups, "info", info)
    with pytest.raises(NotFound):
        await inspector.groups.lag(STREAM, GROUP, over_s=0.01)


@pytest.mark.usefixtures("default_server")
async def test_the_lags_of_many_streams_take_few_round_trips(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        add(raw, 10, f"stream-{n}")
        read_as(raw, "someone", 4, f"stream-{n}")
        raw.xtrim(f"stream-{n}", maxlen=9, approximate=False)
    await inspector.groups.lags()
    trips = count_round_trips(monkeypatch, await client.connection(STREAM))
    assert [lag.count for lag in await inspector.groups.lags()] == [6] * 20
    assert len(trips) <= 10


@pytest.mark.usefixtures("default_server")
async def test_a_group_that_does_not_exist_is_not_found(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 1)
    with pytest.raises(NotFound, match="has no group 'nobody'"):
        await inspector.groups.lag(STREAM, "nobody")
    with pytest.raises(NotFound, match="stream 'nothing' does not exist"):
        await inspector.groups.lag("nothing", GROUP)


@pytest.mark.usefixtures("default_server")
async def test_a_group_that_has_read_all_has_no_lag(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 3)
    read_as(raw, "someone", 3)
    [group] = await inspector.groups.of(STREAM)
    assert group.lag == Lag(0, 0.0)
    assert (await inspector.groups.lag(STREAM, GROUP)).drain_s == 0


# --- rates, without a server ----------------------------------------------------------------------


def test_what_came_and_is_not_unread_went_out() -> None:
    assert rates(GroupPosition(0, 100, 50), GroupPosition(10, 200, 30)) == Rates(10.0, 12.0, 15.0)


def test_a_backlog_that_grows_never_drains() -> None:
    found = rates(GroupPosition(0, 100, 50), GroupPosition(10, 200, 120))
    assert found == Rates(10.0, 3.0, None)


@pytest.mark.parametrize("after", [GroupPosition(0, 100, 0), GroupPosition(5, 20, 0)])
def test_without_time_or_with_a_new_stream_there_is_no_rate(after: GroupPosition) -> None:
    assert rates(GroupPosition(0, 50 if after.at_s == 0 else 100, 0), after) is None


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False)])
def test_with_a_bound_there_is_no_rate(before: bool, after: bool) -> None:
    assert rates(GroupPosition(0, 100, 50, before), GroupPosition(10, 200, 30, after)) is None


def test_a_group_that_reads_nothing_is_known_to_also_with_a_bound() -> None:
    before = GroupPosition(0, 100, 50, is_exact=False, last_delivered_id="5-0")
    assert rates(before, GroupPosition(10, 200, 150, False, "5-0")) == Rates(10.0, 0.0, None)
    assert rates(before, GroupPosition(10, 200, 50, False, "6-0")) is None


def test_nothing_unread_is_drained_already() -> None:
    assert drain_s(0, 5.0, 0.0) == 0.0


async def test_a_count_that_was_killed_is_no_lag_of_zero(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add(raw, 10)
    raw.xgroup_create(STREAM, GROUP, ids[1])
    raw.xdel(STREAM, ids[5])
    counted = lag_module.run_many

    async def kill(*_: object) -> list[object]:
        return [error_reply("ERR Error running script: Script killed by user with SCRIPT KILL.")]

    monkeypatch.setattr(lag_module, "run_many", kill)
    with pytest.raises(ServerError):
        await inspector.groups.info(STREAM, GROUP)
    monkeypatch.setattr(lag_module, "run_many", counted)
    assert (await inspector.groups.info(STREAM, GROUP)).lag.count == 7
