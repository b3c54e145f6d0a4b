"""Heartbeats: one round trip for all streams, and what becomes of streams when Redis does not answer for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from penstock import RetryConfig, StreamClient
from penstock.balancer.commands import BalancerCommands
from penstock.balancer.config import MetricsRecorder
from penstock.balancer.messages import LBSInfo
from penstock.errors import StreamNotOwned
from penstock.testing import FaultProxy
from tests.balancer.stage import (
    GROUP,
    LASTING,
    LBS,
    SEP,
    add_raw,
    age_locks,
    are_extended,
    following,
    locks,
    pending,
    quick,
)
from tests.helpers import threads
from tests.helpers.aio import eventually, throughout


async def test_all_streams_of_a_consumer_cost_one_round_trip(
    client: StreamClient, raw: redis.Redis, default_server: object
) -> None:
    async with following(quick(client, "a", heartbeat_interval_ms=1_000, lease_ms=60_000, lbs_idle_time=120)) as (a,):
        for number in range(1_200):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(a.owned) == 1_200)
        [connection] = a.balancer._heartbeat._thread._runner._connections.values()
        trips: list[int] = []
        whole = connection.pipeline

        def counted(commands: Sequence[Any], *args: Any) -> Any:
            trips.append(len(commands))
            return whole(commands, *args)

        connection.pipeline = counted  # type: ignore[method-assign]
        await eventually(lambda: len(trips) >= 2)
        assert set(trips) == {3}, "three scripts of at most 500 streams in one write"


async def test_a_claim_of_a_lock_that_holds_another_type_lets_no_heartbeat_fail(
    client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(quick(client, "a", **LASTING)) as (a,):
        add_raw(raw, "session-1")
        await eventually(lambda: a.owned == ["session-1"])
        raw.rpush(f"session-2{SEP}1-1", "junk")
        with a.balancer._holdings.claiming(LBSInfo("session-2", "1-1")) as claim:
            begun = a.balancer._heartbeat.begun
            await eventually(lambda: a.balancer._heartbeat.begun > begun + 3)
            assert claim is not None
            assert not claim.is_held
    assert "cannot renew" not in caplog.text


async def test_a_claim_that_ends_after_the_balancer_starts_no_heartbeat(client: StreamClient) -> None:
    balancer = quick(client, "a")
    async with following(balancer):
        pass
    balancer._beat()  # as a claim does that was under way meanwhile
    assert not balancer._heartbeat._thread.has(balancer._heartbeat)


async def test_locks_are_extended_while_the_application_does_not_give_way(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a", **LASTING), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        for _ in range(3):  # without a turn for the event loop
            age_locks(raw)
            threads.eventually(lambda: are_extended(raw))
        assert locks(raw) == {f"session-1{SEP}{entry_id}": a.balancer.id}
        # A loss would be told with a delay; that there is none shows nowhere.
        await throughout(0.3, lambda: a.disowned == [])


async def test_a_stream_that_is_done_keeps_its_lock_until_the_server_has_settled_it(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = BalancerCommands.done

    async def done_late(*args: Any) -> None:
        for _ in range(3):
            age_locks(raw)
            threads.eventually(lambda: are_extended(raw))  # as if the application gave the event loop no turn
        await done(*args)

    monkeypatch.setattr(BalancerCommands, "done", done_late)
    async with following(quick(client, "a", **LASTING), claims=False) as (a,):
        add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        await a.balancer.done_stream("session-1")
        assert (a.disowned, locks(raw), raw.xlen(LBS)) == ([], {}, 0)


async def test_locks_are_extended_while_the_server_is_at_its_memory_limit(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a", **LASTING), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        raw.config_set("maxmemory", 1)
        for _ in range(3):
            age_locks(raw)
            await eventually(lambda: are_extended(raw))
        assert locks(raw) == {f"session-1{SEP}{entry_id}": a.balancer.id}
        await a.balancer.done_stream("session-1")
        assert raw.xlen(LBS) == 0
        assert a.disowned == []


async def test_a_server_that_is_away_for_longer_than_the_lock_costs_no_stream_that_nobody_took(
    raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    settings = {"retry_config": RetryConfig(max_retries=-1, max_retry_delay=0.2)}
    async with (
        StreamClient.from_url(fault_proxy.url) as client,
        following(quick(client, "a", **settings), claims=False) as (a,),
    ):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        fault_proxy.refuse()
        fault_proxy.reset_all()
        await eventually(lambda: not locks(raw))
        fault_proxy.heal()
        await eventually(lambda: locks(raw) == {f"session-1{SEP}{entry_id}": a.balancer.id})
        add_raw(raw, "session-2")
        await eventually(lambda: a.added == ["session-1", "session-2"])
        assert a.disowned == []


async def test_a_consumer_that_cannot_read_says_so_and_ends(raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    settings = {"retry_config": RetryConfig(max_retries=2, initial_retry_delay=0.01, max_retry_delay=0.02)}
    async with (
        StreamClient.from_url(fault_proxy.url) as client,
        following(quick(client, "a", **settings), claims=False) as (a,),
    ):
        add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        fault_proxy.refuse()
        fault_proxy.reset_all()
        await eventually(lambda: a.notices[-1].type == 4)
        assert "Redis" in a.ending
        fault_proxy.heal()


async def test_a_lost_group_is_created_again_and_every_stream_has_one_owner_again(
    client: StreamClient, raw: redis.Redis
) -> None:
    async with following(quick(client, "a"), quick(client, "b")) as (a, b):
        for number in range(6):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(a.owned) + len(b.owned) == 6)
        raw.xgroup_destroy(LBS, GROUP)
        await eventually(lambda: len(pending(raw)) == 6)
        add_raw(raw, "later")
        await eventually(lambda: len({*a.owned, *b.owned}) == len(a.owned + b.owned) == len(locks(raw)) == 7)
        # Several heartbeats, each of which could find a second owner, and tells nobody that it did not.
        await throughout(0.6, lambda: len({*a.owned, *b.owned}) == len(a.owned + b.owned) == 7)


async def test_a_stream_that_somebody_finished_for_us_is_lost(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), claims=False) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        raw.xack(LBS, GROUP, entry_id)
        raw.xdel(LBS, entry_id)
        await eventually(lambda: a.disowned == ["session-1"])
        assert locks(raw) == {}


class Numbers(MetricsRecorder):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def record_startup_recovery(self, count: int, duration_s: float) -> None:
        self.told.append(("recovery", count))

    def record_lock_acquired(self, stream: str, is_success: bool) -> None:
        self.told.append(("acquired", is_success))

    def record_locks_extended(self, count: int, lost: int) -> None:
        self.told.append(("extended", count))

    def record_lock_released(self, stream: str, is_success: bool) -> None:
        self.told.append(("released", stream))

    def record_processing_started(self, stream: str) -> None:
        self.told.append(("started", stream))

    def record_processing_ended(self, stream: str, duration_s: float) -> None:
        self.told.append(("ended", stream))

    def record_ksp_received(self, count: int) -> None:
        self.told.append(("ksp", count))


async def test_the_recorder_is_told_what_happens(client: StreamClient, raw: redis.Redis) -> None:
    numbers = Numbers()
    async with following(quick(client, "a", metrics_recorder=numbers)) as (a,):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: ("extended", 1) in numbers.told)
        raw.set(f"session-1{SEP}{entry_id}", a.balancer.id, px=1)
        await eventually(lambda: ("ksp", 1) in numbers.told)
        await a.balancer.done_stream("session-1")
    expected = [("acquired", True), ("started", "session-1"), ("released", "session-1"), ("ended", "session-1")]
    assert [fact for fact in numbers.told if fact in expected] == expected
    assert ("recovery", 0) in numbers.told


@pytest.mark.parametrize("make", [lambda b: b.done_stream, lambda b: b.release])
async def test_what_is_not_owned_cannot_be_given_up(client: StreamClient, make: Callable[..., Any]) -> None:
    with pytest.raises(StreamNotOwned, match="not found"):
        await make(quick(client, "a"))("unknown")


async def test_finishing_and_handing_over_in_the_middle_of_heartbeats_is_no_loss(
    client: StreamClient, raw: redis.Redis, default_server: object
) -> None:
    async with following(quick(client, "a", heartbeat_interval_ms=2, recovery_interval_ms=60_000), claims=False) as (
        a,
    ):
        for number in range(300):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(a.owned) == 300)
        for number in range(0, 300, 2):
            await a.balancer.done_stream(f"session-{number}")
            await a.balancer.release(f"session-{number + 1}")
        assert a.owned == []
        await eventually(lambda: locks(raw) == {})
        # A heartbeat that was under way could still extend a lock, and leaves no trace when it does not.
        await throughout(0.3, lambda: a.disowned == [] and locks(raw) == {})
        assert raw.xlen(LBS) == 150
