"""What a Go peer of the same service sees and does: names, TTLs, idle times and events, on the raw wire."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import redis

from penstock import StreamClient
from penstock.balancer.balancer import StreamBalancer
from penstock.balancer.messages import LBSInfo
from penstock.balancer.orphans import merged
from penstock.errors import AlreadyClaimed, ConfigurationError, StreamNotOwned
from penstock.keys import BalancerKeys
from tests.balancer.stage import (
    GROUP,
    LASTING,
    LBS,
    SEP,
    add_raw,
    age_locks,
    are_extended,
    crash,
    following,
    go_claims,
    go_reads,
    locks,
    pending,
    plain,
    quick,
)
from tests.helpers.aio import eventually, throughout

pytestmark = pytest.mark.every_server

GO = "redis-consumer-go-1"


# --- 1: names -------------------------------------------------------------------------------------


async def test_rule_1_entries_are_written_as_go_reads_them(client: StreamClient, raw: redis.Redis) -> None:
    entry_id = await quick(client, "a").add_stream("session-1", {"user": 7})
    ((found, fields),) = raw.xrange(LBS)
    assert found.decode() == entry_id
    assert list(fields) == [b"lbs-input"]
    assert json.loads(fields[b"lbs-input"]) == {"DataStreamName": "session-1", "Info": {"user": 7}}


async def test_rule_1_a_name_that_go_cannot_parse_is_refused(client: StreamClient, raw: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="must not contain"):
        await quick(client, "a").add_stream(f"a{SEP}b")
    assert not raw.exists(LBS)


async def test_rule_1_stream_group_and_lock_are_those_of_go(client: StreamClient, raw: redis.Redis) -> None:
    async with following(plain(client, "a")) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        assert [group["name"] for group in raw.xinfo_groups(LBS)] == [GROUP.encode()]
        assert raw.get(f"session-1{SEP}{entry_id}") == b"redis-consumer-a"


# --- 2: ids ---------------------------------------------------------------------------------------


async def test_rule_2_the_id_comes_from_the_argument_the_pod_name_or_its_address(
    client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POD_NAME", raising=False)
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    assert StreamBalancer(client, "svc").id == "redis-consumer-10.0.0.7"
    monkeypatch.setenv("POD_NAME", "pod-3")
    assert StreamBalancer(client, "svc").id == "redis-consumer-pod-3"
    assert StreamBalancer(client, "svc", id="mine").id == "redis-consumer-mine"
    monkeypatch.delenv("POD_NAME")
    monkeypatch.delenv("POD_IP")
    with pytest.raises(ConfigurationError, match="pod name or pod IP is missing"):
        StreamBalancer(client, "svc")


# --- 3: the lock ----------------------------------------------------------------------------------


async def test_rule_3_a_lock_holds_for_two_seconds(client: StreamClient, raw: redis.Redis) -> None:
    async with following(plain(client, "a")) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        lock = f"session-1{SEP}{entry_id}"
        await eventually(lambda: 1000 < raw.pttl(lock) <= 2000)


async def test_rule_3_a_live_owner_keeps_its_lock_and_go_cannot_have_it(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a", **LASTING)) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        for _ in range(3):
            age_locks(raw)
            assert not raw.set(f"session-1{SEP}{entry_id}", GO, px=2000, nx=True)
            await eventually(lambda: are_extended(raw))
        assert a.expired == a.disowned == []


async def test_rule_3_go_takes_over_when_we_stop(client: StreamClient, raw: redis.Redis) -> None:
    balancer = plain(client, "a")
    async with following(balancer) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        await eventually(lambda: pending(raw)[entry_id][1] > 2500)
        await crash(balancer)
        assert raw.pttl(f"session-1{SEP}{entry_id}") <= 2000
        await eventually(lambda: not locks(raw))
        assert go_claims(raw, GO, "session-1", entry_id), "it is idle for the two seconds that Go demands"


# --- 4: events ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["KEx", "Ex", "Kx", "AKE"])
async def test_rule_4_either_flavour_of_events_is_heard(client: StreamClient, raw: redis.Redis, flags: str) -> None:
    async with following(quick(client, "a", recovery_interval_ms=60_000)) as (a,):
        add_raw(raw, "other")
        await eventually(lambda: a.added == ["other"])
        raw.config_set("notify-keyspace-events", flags)
        entry_id = _left_by_go(raw, "session-1")
        raw.xclaim(LBS, GROUP, GO, 0, [entry_id], idle=3000, justid=True)
        raw.set(f"session-1{SEP}{entry_id}", GO, px=1)
        await eventually(lambda: raw.get(f"session-1{SEP}{entry_id}") != GO.encode())  # looking makes Redis notice
        await eventually(lambda: "session-1" in a.owned)
        assert a.expired.count("session-1") == 1


def _left_by_go(raw: redis.Redis, name: str) -> str:
    # Straight into the pending list of a Go peer, past every reader.
    entry_id = add_raw_unseen(raw, name)
    raw.set(f"{name}{SEP}{entry_id}", GO, px=60_000)
    return entry_id


def add_raw_unseen(raw: redis.Redis, name: str) -> str:
    """Adds an entry and hands it to the Go peer in one step, so that nobody who waits gets it."""
    script = """
    local id = redis.call('XADD', KEYS[1], '*', 'lbs-input', ARGV[1])
    redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
    return id
    """
    value = json.dumps({"DataStreamName": name, "Info": None})
    return raw.eval(script, 1, LBS, value, GROUP, GO).decode()


@pytest.mark.admin("it sets flags of the server")
async def test_rule_4_flags_of_others_are_kept_and_looked_at_again(client: StreamClient, raw: redis.Redis) -> None:
    raw.config_set("notify-keyspace-events", "Kg$")
    async with following(quick(client, "a")):
        flags = raw.config_get("notify-keyspace-events")["notify-keyspace-events"]
        assert set("KEg$x") <= set(flags)
        raw.config_set("notify-keyspace-events", "")  # as a Go peer with force may do
        await eventually(lambda: set("KEx") <= set(raw.config_get("notify-keyspace-events").popitem()[1]))


def test_rule_4_merging_adds_and_takes_nothing_away() -> None:
    assert merged("") == "KEx"
    assert merged("AKE") == "AKE"
    assert merged("Kg$") == "Kg$Ex"
    assert merged("xE") == "xEK"


# --- 5: splitting ---------------------------------------------------------------------------------


def test_rule_5_a_lock_is_split_from_the_right() -> None:
    assert BalancerKeys.split_lock(f"a{SEP}1-0") == ("a", "1-0")
    assert BalancerKeys.split_lock(f"a{SEP}b{SEP}1-0") == (f"a{SEP}b", "1-0")
    assert BalancerKeys.split_lock("a:1-0") is None


# --- 6 and 7: taking over and finishing -----------------------------------------------------------


async def test_rule_6_the_entry_of_a_live_go_owner_stays_where_it_is(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), claims=False) as (a,):
        entry_id = _left_by_go(raw, "session-1")
        raw.xclaim(LBS, GROUP, GO, 0, [entry_id], idle=9000, justid=True)
        with pytest.raises(AlreadyClaimed, match=GO):
            await a.balancer.claim(LBSInfo("session-1", entry_id))
        assert pending(raw)[entry_id][0] == GO
        assert locks(raw)[f"session-1{SEP}{entry_id}"] == GO


async def test_rule_7_done_leaves_nothing_behind_and_a_foreign_lock_alone(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a")) as (a,):
        first, second = add_raw(raw, "one"), add_raw(raw, "two")
        await eventually(lambda: len(a.added) == 2)
        await a.balancer.done_stream("one")
        assert first not in pending(raw)
        assert raw.xlen(LBS) == 1
        assert f"one{SEP}{first}" not in locks(raw)
        raw.set(f"two{SEP}{second}", GO, px=60_000)
        with pytest.raises(StreamNotOwned):
            await a.balancer.done_stream("two")
        assert locks(raw) == {f"two{SEP}{second}": GO}
        assert second in pending(raw), "the new owner's entry is not acknowledged"


# --- 8: handing over ------------------------------------------------------------------------------


async def test_rule_8_a_release_sends_the_event_that_go_waits_for(client: StreamClient, raw: redis.Redis) -> None:
    async with following(plain(client, "a")) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        pubsub = raw.pubsub(ignore_subscribe_messages=True)
        pubsub.psubscribe(f"__keyspace@0__:*{SEP}*")
        pubsub.get_message(timeout=1)
        await a.balancer.release("session-1")
        messages = []

        def heard() -> bool:
            message = pubsub.get_message()
            if message:
                messages.append((message["channel"].decode(), message["data"]))
            return (f"__keyspace@0__:session-1{SEP}{entry_id}", b"expired") in messages

        await eventually(heard)
        assert go_claims(raw, GO, "session-1", entry_id), "at once, though it was read a moment ago"
        pubsub.close()


async def test_rule_8_a_subscription_that_broke_is_made_again_and_what_it_missed_is_found(
    client: StreamClient, raw: redis.Redis
) -> None:
    never = 3_600_000  # nothing but events, and what follows a gap in them, tells of the stream
    async with following(
        plain(client, "a", recovery_interval_ms=never), plain(client, "b", recovery_interval_ms=never)
    ) as (a, b):
        add_raw(raw, "session-1")
        await eventually(lambda: a.added or b.added)
        owner, other = (a, b) if a.added else (b, a)
        assert raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 2
        await owner.balancer.release("session-1")  # while nobody listens
        await eventually(lambda: other.owned == ["session-1"])
        await other.balancer.release("session-1")
        await eventually(lambda: owner.owned == ["session-1"])


# --- 9 and 10: the group and the database ---------------------------------------------------------


async def test_rule_9_the_group_begins_at_the_beginning_and_one_of_go_is_taken_as_it_is(
    client: StreamClient, raw: redis.Redis
) -> None:
    add_raw(raw, "early")
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.added == ["early"])
    raw.flushall()
    raw.xgroup_create(LBS, GROUP, "$", mkstream=True)
    add_raw(raw, "later")
    async with following(quick(client, "b")) as (b,):
        await eventually(lambda: b.added == ["later"])


@pytest.mark.admin("its user would have channels of another database")
async def test_rule_10_any_database_will_do(redis_url: str, raw: redis.Redis) -> None:
    async with StreamClient.from_url(redis_url, db=3) as client:
        dead = quick(client, "dead")
        async with following(dead) as (first,):
            await first.balancer.add_stream("session-1")
            await eventually(lambda: first.added)
            async with following(quick(client, "a", recovery_interval_ms=60_000)) as (a,):
                await crash(dead)
                await eventually(lambda: a.owned == ["session-1"])
    assert not raw.exists(LBS), "nothing in database 0"


# --- 11 and 12: idle times ------------------------------------------------------------------------


async def test_rule_11_heartbeats_keep_idle_times_between_those_that_go_looks_at(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(plain(client, "a")) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        await eventually(lambda: pending(raw)[entry_id][1] >= 3000)
        idle_ms = [pending(raw)[entry_id][1]]

        def has_been_set_twice() -> bool:
            idle_ms.append(pending(raw)[entry_id][1])
            return sum(after < before for before, after in pairwise(idle_ms)) >= 2

        await eventually(has_been_set_twice)
        assert min(idle_ms) >= 2000, "the claim of a Go peer demands as much, once the lock has expired"
        assert pending(raw)[entry_id][2] == 1, "the delivery count does not rise"
        # What a Go newcomer does with everything that is idle for 40 s:
        _, rows, *_ = raw.xautoclaim(LBS, GROUP, GO, 40_000, "0-0", count=1000)
        assert rows == []


async def test_rule_12_a_heartbeat_takes_nothing_back(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        # A Go peer takes over while our lock is gone, as after a pause:
        script = """
        redis.call('SET', KEYS[2], ARGV[2], 'PX', 60000)
        return redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3])
        """
        raw.eval(script, 2, LBS, f"session-1{SEP}{entry_id}", GROUP, GO, entry_id)
        await eventually(lambda: a.disowned == ["session-1"])
        # Several heartbeats, which leave no trace when they have nothing to refresh.
        await throughout(0.5, lambda: pending(raw)[entry_id][0] == GO)
        assert locks(raw) == {f"session-1{SEP}{entry_id}": GO}


async def test_go_and_python_read_side_by_side(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a", capacity=1)) as (a,):
        add_raw(raw, "one")
        await eventually(lambda: a.added == ["one"])
        second = add_raw(raw, "two")
        assert go_reads(raw, GO) == [second], "what we have no room for is left to others"
        assert locks(raw)[f"two{SEP}{second}"] == GO
