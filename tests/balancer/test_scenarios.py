"""Counterparts of the twelve scenarios by which redis-stream-client-go is tested upstream."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock import StreamClient
from penstock.balancer.messages import LBSInfo, StreamAdded
from penstock.balancer.reader import Reader
from penstock.errors import AlreadyClaimed, ConnectionLost
from tests.balancer.stage import LBS, SEP, add_raw, crash, following, locks, pending, plain, quick
from tests.helpers.aio import eventually, outcomes, start, throughout

pytestmark = pytest.mark.every_server


async def test_lbs_streams_go_to_the_consumers_and_each_to_one(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "111"), quick(client, "222")) as (a, b):
        for number in range(10):
            add_raw(raw, f"session{number}", {"key": f"value{number}"})
        await eventually(lambda: len(a.added) + len(b.added) == 10)
        assert sorted(a.added + b.added) == sorted(f"session{number}" for number in range(10))
        assert a.added
        assert b.added
        infos = [notice.additional_info for notice in a.notices + b.notices if isinstance(notice, StreamAdded)]
        assert {"key": "value3"} in infos


async def test_lbs_recovery_a_restarted_consumer_gets_its_own_streams_back(
    client: StreamClient, raw: redis.Redis
) -> None:
    dead = quick(client, "111")
    async with following(dead) as (first,):
        for number in range(3):
            add_raw(raw, f"session{number}")
        await eventually(lambda: len(first.owned) == 3)
        await crash(dead)
    async with following(quick(client, "111")) as (again,):
        await eventually(lambda: len(again.owned) == 3)
        assert {consumer for consumer, _, _ in pending(raw).values()} == {"redis-consumer-111"}


async def test_recovery_of_messages_with_finished_ones_between_them(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "111")
    async with following(dead) as (first,):
        for number in range(6):
            add_raw(raw, f"session{number}")
        await eventually(lambda: len(first.owned) == 6)
        for number in (1, 3, 4):
            await dead.done_stream(f"session{number}")
        await crash(dead)
    async with following(quick(client, "222")) as (other,):
        await eventually(lambda: sorted(other.owned) == ["session0", "session2", "session5"])
        assert raw.xlen(LBS) == 3


async def test_claim_works_only_once(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "111")
    async with following(dead, claims=False) as (first,):
        entry_id = add_raw(raw, "session1")
        await eventually(lambda: first.added)
        await crash(dead)
        await eventually(lambda: not locks(raw))
        peers = [quick(client, f"peer-{number}") for number in range(5)]
        info = LBSInfo("session1", entry_id)
        results = await outcomes([start(peer.claim, info) for peer in peers])
        assert sum(isinstance(result, AlreadyClaimed) for result in results) == 4
        assert sum(len(peer.owned) for peer in peers) == 1
        for peer in peers:
            await peer.done()


async def test_blocking_read_a_waiting_consumer_is_told_at_once(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Reader.__module__}._BLOCK_MS", 60_000)  # who waits for the read to come round comes too late
    async with following(plain(client, "111")) as (a,):
        for number in range(3):
            await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
            add_raw(raw, f"session{number}")
            await eventually(lambda number=number: len(a.added) == number + 1)


async def test_ksp_a_peer_is_told_of_an_expired_stream_and_claims_it(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "111")
    async with following(dead) as (first,):
        add_raw(raw, "session1", {"key": "value"})
        await eventually(lambda: first.added)
        async with following(quick(client, "222", recovery_interval_ms=60_000)) as (peer,):
            await crash(dead)
            await eventually(lambda: peer.expired == ["session1"])
            await eventually(lambda: peer.owned == ["session1"])
            assert peer.balancer.owned[0].additional_info == {"key": "value"}


async def test_ksp_one_event_leads_to_all_streams_of_the_dead_owner(start_server: Callable[..., Any]) -> None:
    # Redis tells of a lock when it deletes it: at once when somebody asks for it, else seconds later, and here never.
    server, never = start_server(options={"enable-debug-command": "yes"}), {"recovery_interval_ms": 600_000}
    with redis.Redis(unix_socket_path=server.unix_socket) as raw:
        raw.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        async with StreamClient.from_url(server.unix_url) as client:
            dead = quick(client, "dead", **never)
            async with following(dead) as (first,):
                for number in range(5):
                    add_raw(raw, f"session-{number}")
                await eventually(lambda: len(first.owned) == 5)
                async with following(quick(client, "a", **never)) as (a,):
                    lock = next(iter(locks(raw)))
                    await crash(dead)
                    await eventually(lambda: raw.get(lock) is None)
                    await eventually(lambda: sorted(a.owned) == [f"session-{number}" for number in range(5)])


async def test_ksp_in_bulk_two_thousand_streams_over_ten_consumers(
    client: StreamClient, raw: redis.Redis, default_server: object
) -> None:
    balancers = [plain(client, f"consumer-{number}") for number in range(10)]
    async with following(*balancers) as followers:
        await eventually(lambda: raw.hlen("{svc-input}:peers") == 10)
        with raw.pipeline(transaction=False) as burst:
            for number in range(2_000):
                burst.xadd(LBS, {"lbs-input": json.dumps({"DataStreamName": f"session{number}", "Info": {}})})
            burst.execute()
        await eventually(lambda: sum(len(follower.owned) for follower in followers) == 2_000)
        for balancer in balancers[:3]:
            await crash(balancer)
        living = followers[3:]
        await eventually(lambda: sum(len(follower.owned) for follower in living) == 2_000)
        assert len({name for follower in living for name in follower.owned}) == 2_000


async def test_xack_and_xdel_a_finished_stream_leaves_the_stream(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "111")) as (a,):
        add_raw(raw, "session1")
        await eventually(lambda: a.added)
        assert (raw.xlen(LBS), len(pending(raw))) == (1, 1)
        await a.balancer.done_stream("session1")
        assert (raw.xlen(LBS), len(pending(raw))) == (0, 0)


async def test_xack_and_xdel_of_one_of_many_leaves_the_others(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "111")) as (a,):
        ids = [add_raw(raw, f"session{number}") for number in range(3)]
        await eventually(lambda: len(a.added) == 3)
        await a.balancer.done_stream("session1")
        assert [entry_id.decode() for entry_id, _ in raw.xrange(LBS)] == [ids[0], ids[2]]
        assert list(pending(raw)) == [ids[0], ids[2]]
        for name in ("session0", "session2"):
            await a.balancer.done_stream(name)
        assert (raw.xlen(LBS), pending(raw), locks(raw)) == (0, {}, {})


async def test_main_flow_added_expired_claimed_disowned_done(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "111", recovery_interval_ms=60_000), claims=False) as (a,):
        entry_id = add_raw(raw, "session1")
        await eventually(lambda: a.added == ["session1"])
        async with following(quick(client, "222", recovery_interval_ms=60_000), claims=False) as (b,):
            heartbeat = a.balancer._heartbeat
            heartbeat._thread.remove(heartbeat)  # it gets stuck ...
            await eventually(lambda: b.expired == ["session1"])
            await b.balancer.claim(LBSInfo("session1", entry_id))
            assert locks(raw) == {f"session1{SEP}{entry_id}": b.balancer.id}
            heartbeat.start(at_once=True)  # ... and comes back
            await eventually(lambda: a.disowned == ["session1"])
            assert a.owned == []
            await b.balancer.done_stream("session1")
            assert raw.xlen(LBS) == 0
    assert a.ending == b.ending == "done"


async def test_logger_injection(client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("tests.of.the.balancer")
    caplog.set_level(logging.WARNING, logger=mine.name)
    async with following(quick(client, "111", logger=mine)):
        raw.xadd(LBS, {"lbs-input": "no json"})
        await eventually(lambda: any(record.name == mine.name for record in caplog.records))


async def test_init_goes_on_when_recovery_fails(client: StreamClient, raw: redis.Redis) -> None:
    balancer = quick(client, "111")
    failures = []
    whole = balancer._commands.pending

    async def failing(start: str, count: int) -> object:
        if len(failures) < 3:
            failures.append(start)
            raise ConnectionLost("the connection broke")
        return await whole(start, count)

    balancer._commands.pending = failing  # type: ignore[method-assign]
    async with following(balancer) as (a,):
        add_raw(raw, "session1")
        await eventually(lambda: a.added == ["session1"])
        await eventually(lambda: len(failures) == 3)
        # Another round of recovery, which leaves no trace.
        await throughout(0.3, lambda: a.owned == ["session1"])
