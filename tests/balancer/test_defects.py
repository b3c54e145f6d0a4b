"""The defects that redis-stream-client-go is known for, by their numbers, and that this balancer does not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock import StreamClient
from penstock.balancer.commands import BalancerCommands
from penstock.balancer.config import MetricsRecorder
from penstock.balancer.messages import LBSInfo, StreamTerminated
from penstock.errors import AlreadyClaimed, ConfigurationError, OwnershipLost, StreamNotOwned
from penstock.ops.rights import Place, RoleName, rights_of
from penstock.redis.retry import Repeat
from tests.balancer.stage import (
    GROUP,
    LASTING,
    LBS,
    SEP,
    add_raw,
    crash,
    following,
    locks,
    pending,
    plain,
    quick,
)
from tests.helpers.aio import eventually, outcomes, pause, start, throughout
from tests.helpers.hostile import wide

DLQ = "{svc-input}_dlq"
GO = "redis-consumer-go-1"


async def test_1_what_was_added_before_the_first_consumer_came_is_handed_out(
    client: StreamClient, raw: redis.Redis
) -> None:
    add_raw(raw, "early")
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.added == ["early"])


async def test_2_a_second_consumer_starts_and_the_flags_of_others_stay(client: StreamClient, raw: redis.Redis) -> None:
    raw.config_set("notify-keyspace-events", "KEA")
    before = raw.config_get("notify-keyspace-events")
    async with following(quick(client, "a"), quick(client, "b")):
        assert raw.config_get("notify-keyspace-events") == before


async def test_2_it_works_without_the_right_to_configure(start_server: Callable[..., Any]) -> None:
    server = start_server()
    with redis.Redis(unix_socket_path=server.unix_socket) as admin:
        admin.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-config")
    url = server.unix_url.replace("unix://", "unix://plain:secret@")
    async with StreamClient.from_url(url) as client:
        dead = quick(client, "dead")
        async with following(dead) as (first,):
            await first.balancer.add_stream("session-1")
            await eventually(lambda: first.added)
            async with following(quick(client, "a")) as (a,):
                await crash(dead)
                await eventually(lambda: a.owned == ["session-1"])


async def test_3_a_burst_is_shared_out_evenly(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is, nobody takes what another one has not come for in time.
    monkeypatch.setattr(sys.modules[BalancerCommands.__module__], "_PATIENCE_MS", 60_000)
    async with following(*(plain(client, name) for name in "abcd")) as followers:
        await eventually(lambda: raw.hlen("{svc-input}:peers") == 4)
        with raw.pipeline(transaction=False) as burst:
            for number in range(200):
                burst.xadd(LBS, {"lbs-input": f'{{"DataStreamName":"session-{number}"}}'})
            burst.execute()
        await eventually(lambda: sum(len(follower.owned) for follower in followers) == 200)
        assert all(45 <= len(follower.owned) <= 55 for follower in followers), [len(f.owned) for f in followers]


async def test_3_a_backlog_waits_for_those_who_have_fewer_but_not_for_ever(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a")) as (a,):
        # A peer that is alive, has room, and takes nothing:
        await eventually(lambda: raw.hset("{svc-input}:peers", "redis-consumer-lazy", "99999999999999 0 0") is not None)
        for number in range(10):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(a.owned) == 10)


async def test_4_nobody_listened_when_the_owner_died(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "dead")
    async with following(dead) as (first,):
        add_raw(raw, "session-1")
        await eventually(lambda: first.added)
        await crash(dead)
        await eventually(lambda: not locks(raw))
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.owned == ["session-1"])


async def test_4_with_events_switched_off_a_sweep_finds_it(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "dead")
    async with following(dead) as (first,):
        add_raw(raw, "session-1")
        await eventually(lambda: first.added)
        async with following(quick(client, "a")) as (a,):
            raw.config_set("notify-keyspace-events", "")
            await crash(dead)
            await eventually(lambda: a.owned == ["session-1"])


async def test_5_a_newcomer_leaves_living_owners_alone_and_finds_every_orphan(
    client: StreamClient, raw: redis.Redis
) -> None:
    dead = quick(client, "dead")
    async with following(quick(client, "alive"), claims=False) as (alive,):
        kept = add_raw(raw, "kept")
        await eventually(lambda: alive.added == ["kept"])
        await eventually(lambda: pending(raw)[kept][1] >= 500)
        async with following(dead) as (first,):
            for number in range(5):
                add_raw(raw, f"orphan-{number}")
            await eventually(lambda: len(first.owned) + len(alive.owned) == 6)
            orphans = set(first.owned)
            await crash(dead)
        assert orphans
        async with following(quick(client, "newcomer")) as (newcomer,):
            await eventually(lambda: set(newcomer.owned) == orphans)
            assert pending(raw)[kept][0] == alive.balancer.id
            assert alive.disowned == []


class FirstClaim(MetricsRecorder):
    """Remembers how many commands the server had executed for a balancer when it got its first stream."""

    def __init__(self, raw: redis.Redis) -> None:
        self._raw, self.commands = raw, 0
        raw.config_resetstat()

    def record_claim(self, stream: str, is_success: bool, duration_s: float) -> None:
        self.commands = self.commands or self._raw.info("stats")["total_commands_processed"]


@pytest.mark.slow
async def test_6_twelve_thousand_pending_entries_do_not_hold_up_the_start(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.xgroup_create(LBS, GROUP, "0", mkstream=True)
    with raw.pipeline(transaction=False) as many:
        for number in range(12_000):
            many.xadd(LBS, {"lbs-input": f'{{"DataStreamName":"session-{number}"}}'})
        many.execute()
    ids = [row[0] for _, rows in raw.xreadgroup(GROUP, GO, {LBS: ">"}) for row in rows]
    for first in range(0, len(ids), 1000):
        raw.xclaim(LBS, GROUP, GO, 0, ids[first : first + 1000], idle=50_000, justid=True)
    recorder = FirstClaim(raw)
    async with following(plain(client, "a", capacity=12_500, metrics_recorder=recorder)) as (a,):
        await eventually(lambda: recorder.commands)
        # One page of them, not all: about 2,000 commands, most of them within a script, however many are pending.
        assert recorder.commands < 6_000
        add_raw(raw, "newest")
        await eventually(lambda: a.added == ["newest"])
        await eventually(lambda: len(a.balancer.owned) == 12_001, timeout_s=60)  # whose names would take long to list


@pytest.mark.parametrize(
    "fields",
    [
        {"lbs-input": "no json"},
        {"lbs-input": "[1]"},
        {"lbs-input": '{"DataStreamName": ""}'},
        {"lbs-input": '{"DataStreamName": 7}'},
        {"lbs-input": '{"DataStreamName": "a", "Info": 3}'},
        {"other": "field"},
        wide(4_000),
        wide(10_000, **{"lbs-input": "[1]"}),
    ],
    ids=[
        "no JSON",
        "no object",
        "no name",
        "a number as name",
        "a number as info",
        "another field",
        "many fields",
        "very many fields",
    ],
)
async def test_7_a_malformed_entry_goes_to_the_dead_letters_and_takes_no_neighbour_along(
    client: StreamClient, raw: redis.Redis, fields: dict[Any, Any]
) -> None:
    add_raw(raw, "before")
    bad = raw.xadd(LBS, fields).decode()
    add_raw(raw, "after")
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.added == ["before", "after"])
        ((_, record),) = raw.xrange(DLQ)
        assert record[b"dlq_id"].decode() == bad
        assert record[b"dlq_reason"] == b"decode_error"
        assert bad not in pending(raw)
        assert raw.xlen(LBS) == 2


async def test_7_a_malformed_entry_that_a_go_peer_choked_on_is_cleared_away(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.xgroup_create(LBS, GROUP, "0", mkstream=True)
    raw.xadd(LBS, {"lbs-input": "no json"})
    raw.xreadgroup(GROUP, GO, {LBS: ">"})
    async with following(quick(client, "a")):
        await eventually(lambda: raw.xlen(DLQ) == 1)
        assert pending(raw) == {}


async def test_7_no_script_hands_out_more_than_a_few_large_entries(client: StreamClient, raw: redis.Redis) -> None:
    raw.xgroup_create(LBS, GROUP, "0", mkstream=True)
    for number in range(30):
        raw.xadd(LBS, {"junk": b"x" * (300_000 if number < 20 else 10)})
    sizes = []
    while not sizes or sizes[-1]:
        args: list[str | int] = [GROUP, "me", 0, 0, 0, 1, 0, 100]
        _, rows = await client.run("balancer/take", [LBS, "{svc-input}:peers"], args, Repeat.ONCE)
        sizes.append(len(rows))
    assert sum(sizes) == 30
    assert max(sizes[:9]) <= 2
    assert sizes[-2] == 10, "small ones come together"


async def test_7_an_entry_that_names_a_stream_outside_the_rights_of_its_consumer_stops_nothing(
    start_server: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with redis.Redis(unix_socket_path=server.unix_socket) as admin:
        rights = rights_of(RoleName.BALANCER, Place(streams=("session-*",), services=("svc",)))
        rules = rights.rules(
            name for name in rights.command_names if name != "WAITAOF"
        )  # which old servers do not know
        admin.execute_command("ACL", "SETUSER", "limited", ">secret", *rules)
        add_raw(admin, "other-1")
        add_raw(admin, "session-1")
        url = server.unix_url.replace("unix://", "unix://limited:secret@")
        async with StreamClient.from_url(url) as client, following(quick(client, "a")) as (a,):
            await a.balancer.add_stream("other-2")
            await a.balancer.add_stream("session-2")
            await eventually(lambda: a.owned == ["session-1", "session-2"])
            await eventually(lambda: "cannot tell whether data stream 'other-1'" in caplog.text)
            assert len(pending(admin)) == 4
            assert a.names(StreamTerminated) == []
    assert "names the data stream 'other-2', whose lock this consumer cannot use" in caplog.text


async def test_7_a_lock_of_another_type_stops_nothing(client: StreamClient, raw: redis.Redis) -> None:
    raw.rpush(f"session-1{SEP}1-1", "junk")
    raw.xadd(LBS, {"lbs-input": '{"DataStreamName": "session-1"}'}, id="1-1")
    add_raw(raw, "session-2")
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.owned == ["session-2"])
        raw.delete(f"session-1{SEP}1-1")
        await eventually(lambda: sorted(a.owned) == ["session-1", "session-2"])


async def test_7_a_consumer_with_a_strange_name_stops_no_sweep(client: StreamClient, raw: redis.Redis) -> None:
    add_raw(raw, "session-1")
    raw.xgroup_create(LBS, GROUP, "0", mkstream=True)
    raw.xreadgroup(GROUP, b"\xff", {LBS: ">"})  # type: ignore[arg-type]
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.owned == ["session-1"])
        [first] = locks(raw)
        raw.set(first, b"\xff")
        add_raw(raw, "session-2")
        await eventually(lambda: "session-2" in a.owned)


async def test_8_a_claimed_stream_is_kept_from_the_first_moment_on(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "dead")
    async with following(dead) as (first,):
        for number in range(100):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(first.owned) == 100)
        async with following(quick(client, "a"), quick(client, "b")) as (a, b):
            await crash(dead)
            await eventually(lambda: len(a.owned) + len(b.owned) == 100)
            # Several heartbeats: nothing shows that none of them finds a lock gone.
            await throughout(1.0, lambda: len(a.owned) + len(b.owned) == 100)
            assert not set(a.owned) & set(b.owned)
            assert a.disowned == b.disowned == []


async def test_8_claims_of_one_process_side_by_side_give_one_ownership(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "dead")
    async with following(dead) as (first,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: first.added)
        await crash(dead)
        await eventually(lambda: not locks(raw))
        async with following(quick(client, "a", recovery_interval_ms=60_000), claims=False) as (a,):
            info = LBSInfo("session-1", entry_id)
            results = await outcomes([start(a.balancer.claim, info) for _ in range(8)])
            assert sum(isinstance(result, AlreadyClaimed) for result in results) == 7
            assert a.owned == ["session-1"]


async def test_9_one_name_added_twice_has_one_owner_and_the_second_entry_follows_the_first(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a"), quick(client, "b")) as (a, b):
        first = add_raw(raw, "session-1")
        await eventually(lambda: a.owned + b.owned)
        second = add_raw(raw, "session-1", {"again": True})
        await eventually(lambda: len(pending(raw)) == 2)
        # Several rounds of recovery, in which the second entry is left alone: that shows nowhere.
        await throughout(1.0, lambda: len(a.owned + b.owned) <= 1)
        owner = a if a.owned else b
        assert owner.balancer.owned[0].payload.id_in_lbs == first
        await owner.balancer.done_stream("session-1")
        await eventually(lambda: a.owned + b.owned == ["session-1"])
        owner = a if a.owned else b
        assert owner.balancer.owned[0].payload.id_in_lbs == second
        assert owner.balancer.owned[0].additional_info == {"again": True}


async def test_10_done_finishes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a")) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
    assert raw.xlen(LBS) == 1
    assert entry_id in pending(raw)


async def test_11_a_claim_of_a_living_stream_changes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        await eventually(lambda: pending(raw)[entry_id][1] >= 400)
        other = quick(client, "b")
        with pytest.raises(AlreadyClaimed, match="redis-consumer-a"):
            await other.claim(LBSInfo("session-1", entry_id))
        assert pending(raw)[entry_id][0] == a.balancer.id
        assert other.owned == []


async def test_12_a_paused_owner_that_was_not_missed_goes_on_and_is_not_offered_its_own_stream(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a", recovery_interval_ms=100)) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        raw.delete(f"session-1{SEP}{entry_id}")
        await eventually(lambda: locks(raw) == {f"session-1{SEP}{entry_id}": a.balancer.id})
        # Several sweeps, which pass over its own stream without a word.
        await throughout(0.5, lambda: a.expired == a.disowned == [])
        with pytest.raises(AlreadyClaimed, match="owned by this consumer"):
            await a.balancer.claim(LBSInfo("session-1", entry_id))


async def test_12_every_owner_has_a_greater_token_than_those_before_it(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        first = a.balancer.owned[0].token
        await a.balancer.release("session-1")
        await eventually(lambda: not locks(raw))
        async with following(quick(client, "b"), claims=False) as (b,):
            second = (await b.balancer.claim(LBSInfo("session-1", entry_id))).token
    assert second > first > 0


async def test_13_broken_connections_cost_no_stream(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        for _ in range(3):
            raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            # The heartbeat connects again at some moment, and tells only of losses.
            await throughout(0.3, lambda: a.disowned == [])
        await eventually(lambda: locks(raw) == {f"session-1{SEP}{entry_id}": a.balancer.id})
        await a.balancer.done_stream("session-1")
        assert raw.xlen(LBS) == 0


async def test_13_what_was_finished_while_the_lock_had_run_out_is_finished(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(plain(client, "a"), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        raw.delete(f"session-1{SEP}{entry_id}")
        await a.balancer.done_stream("session-1")
        assert (raw.xlen(LBS), pending(raw)) == (0, {})


async def test_14_a_pending_entry_without_a_lock_is_found(client: StreamClient, raw: redis.Redis) -> None:
    raw.xgroup_create(LBS, GROUP, "0", mkstream=True)
    entry_id = add_raw(raw, "session-1")
    raw.xreadgroup(GROUP, GO, {LBS: ">"})  # and died before it took the lock, or after it gave it up
    async with following(quick(client, "a")) as (a,):
        await eventually(lambda: a.owned == ["session-1"])
        assert pending(raw)[entry_id][0] == a.balancer.id


async def test_15_expiries_of_other_services_are_not_told(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a")) as (a,):
        entry_id = add_raw(raw, "mine")
        await eventually(lambda: a.added)
        raw.set(f"theirs{SEP}1-0", "redis-consumer-x", px=1)
        raw.set(f"theirs{SEP}{entry_id}", "redis-consumer-x", px=1)  # an id of ours under another name
        raw.set(f"theirs{SEP}nonsense", "redis-consumer-x", px=1)
        await eventually(lambda: not raw.keys(f"theirs{SEP}*"))
        # The events have come or are about to; one that is passed over leaves no trace.
        await throughout(0.5, lambda: a.expired == [])
        assert a.owned == ["mine"]


async def test_16_a_slow_application_keeps_its_streams_and_hears_of_every_loss(
    client: StreamClient, raw: redis.Redis
) -> None:
    balancer = quick(client, "a", output_chan_size=5, **LASTING)
    notices = await balancer.start()
    for number in range(20):
        add_raw(raw, f"session-{number}")
    await eventually(lambda: len(balancer.owned) >= 5)
    await throughout(1.0, lambda: len(balancer.owned) <= 6)  # back-pressure: it does not take what nobody reads
    owned = {ownership.payload.data_stream_name for ownership in balancer.owned}
    assert {key.split(SEP)[0] for key in locks(raw)} == owned, "all locks are extended"
    for key in locks(raw):
        raw.set(key, GO, px=60_000)
    await eventually(lambda: not balancer.owned)
    await balancer.done()
    disowned = {notice.payload.data_stream_name async for notice in notices if notice.type == 2}
    assert disowned >= owned


class Counting(MetricsRecorder):
    """Counts claims."""

    def __init__(self) -> None:
        self.claims: list[bool] = []

    def record_claim(self, stream: str, is_success: bool, duration_s: float) -> None:
        self.claims.append(is_success)


async def test_17_errors_tell_their_cause_and_numbers_tell_the_truth(client: StreamClient, raw: redis.Redis) -> None:
    recorder = Counting()
    balancer = quick(client, "a", metrics_recorder=recorder)
    async with following(balancer, claims=False) as (a,):
        with pytest.raises(StreamNotOwned, match="'unknown' not found"):
            await a.balancer.done_stream("unknown")
        with pytest.raises(AlreadyClaimed):
            await a.balancer.claim(LBSInfo("unknown", "1-0"))
        assert recorder.claims == [False]
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        raw.set(f"session-1{SEP}{entry_id}", GO, px=60_000)
        with pytest.raises(StreamNotOwned):
            await a.balancer.done_stream("session-1")
    await balancer.done()
    await balancer.done()
    with pytest.raises(ConfigurationError, match="already started"):
        await balancer.start()
    assert issubclass(OwnershipLost, StreamNotOwned)


async def test_18_nobody_takes_more_than_it_can(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a", capacity=2), quick(client, "b", capacity=3)) as (a, b):
        for number in range(8):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(a.owned) == 2 and len(b.owned) == 3)
        # Several rounds of recovery: nothing shows that a consumer declines to take more.
        await throughout(0.5, lambda: len(a.owned) == 2 and len(b.owned) == 3)
        await a.balancer.done_stream(a.owned[0])
        await eventually(lambda: len(a.added) == 3)


async def test_18_an_entry_that_kills_its_owners_is_given_up(client: StreamClient, raw: redis.Redis) -> None:
    entry_id = add_raw(raw, "poison")
    for attempt in range(2):
        victim = quick(client, f"victim-{attempt}", max_deliveries=2)
        async with following(victim) as (follower,):
            await eventually(lambda follower=follower: follower.owned == ["poison"])
            await crash(victim)
        await eventually(lambda: not locks(raw))
    async with following(quick(client, "careful", max_deliveries=2)) as (careful,):
        await eventually(lambda: raw.xlen(DLQ) == 1)
        await pause(0)
        assert careful.owned == []
        ((_, record),) = raw.xrange(DLQ)
        assert record[b"dlq_id"].decode() == entry_id
        assert record[b"dlq_reason"] == b"max_deliveries"
        assert record[b"dlq_deliveries"] == b"2"
