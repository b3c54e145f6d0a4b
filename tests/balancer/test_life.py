"""A data stream from its first entry to its end: added, owned, finished, handed over, taken over."""

from __future__ import annotations

import pytest
import redis

from penstock import Event, StreamClient
from penstock.balancer.messages import StreamAdded
from tests.balancer.stage import GROUP, LBS, SEP, add_raw, crash, following, locks, pending, quick
from tests.helpers.aio import eventually

pytestmark = pytest.mark.acl(stream=("session-*",))


async def test_a_stream_that_is_added_gets_one_owner_with_its_info(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a"), quick(client, "b")) as (a, b):
        entry_id = await a.balancer.add_stream("session-1", {"user": 7})
        await eventually(lambda: a.added + b.added)
        owner = a if a.added else b
        notice = next(notice for notice in owner.notices if isinstance(notice, StreamAdded))
        assert notice.additional_info == {"user": 7}
        assert (notice.payload.data_stream_name, notice.payload.id_in_lbs) == ("session-1", entry_id)
        assert locks(raw) == {f"session-1{SEP}{entry_id}": owner.balancer.id}
        await owner.balancer.done_stream("session-1")
        assert (raw.xlen(LBS), pending(raw), locks(raw)) == (0, {}, {})
    assert a.added + b.added == ["session-1"]


async def test_a_stream_of_a_dead_owner_is_claimed_by_exactly_one_peer(client: StreamClient, raw: redis.Redis) -> None:
    dead = quick(client, "dead")
    async with following(dead) as (first,):
        add_raw(raw, "session-1")
        await eventually(lambda: first.added)
        async with following(quick(client, "a"), quick(client, "b")) as (a, b):
            await crash(dead)
            await eventually(lambda: a.claimed + b.claimed)
            assert len(a.owned + b.owned) == 1


async def test_a_released_stream_is_handed_over_at_once(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "a", recovery_interval_ms=60_000)) as (a,):
        add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        async with following(quick(client, "b", recovery_interval_ms=60_000)) as (b,):
            await a.balancer.release("session-1")
            await eventually(lambda: b.owned == ["session-1"])
            assert a.owned == []


async def test_a_stream_that_was_handed_over_comes_back_at_once_when_its_new_owner_dies(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.balancer.orphans._LEAVE_TO_OTHERS_S", 3_600.0)
    async with following(quick(client, "a")) as (a,):
        add_raw(raw, "session-1")
        await eventually(lambda: a.added)
        dead = quick(client, "dead")
        async with following(dead) as (b,):
            await a.balancer.release("session-1")
            await eventually(lambda: b.owned == ["session-1"])
            await crash(dead)
        await eventually(lambda: a.owned == ["session-1"])


async def test_done_hands_over_what_is_not_finished(client: StreamClient, raw: redis.Redis) -> None:
    async with following(quick(client, "b", recovery_interval_ms=60_000)) as (b,):
        async with following(quick(client, "a", capacity=3)) as (a,):
            for number in range(6):
                add_raw(raw, f"session-{number}")
            await eventually(lambda: len(a.owned) + len(b.owned) == 6)
        await eventually(lambda: len(b.owned) == 6)
        assert a.ending == "done"
        assert raw.xlen(LBS) == 6


async def test_a_balancer_tells_what_becomes_of_its_streams(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Event] = []
    async with following(quick(client, "a", on_event=events.append)) as (a,):
        first, second = add_raw(raw, "session-1"), add_raw(raw, "session-2")
        raw.xadd(LBS, {"lbs-input": "no message"})
        await eventually(lambda: len(a.added) == 2 and len(events) == 3)
        await a.balancer.done_stream("session-1")
    assert {(event.stream, event.group) for event in events} == {(LBS, GROUP)}
    assert sorted(str(event.name) for event in events[:3]) == ["claimed", "claimed", "dead_lettered"]
    assert [(str(event.name), dict(event.fields)) for event in events[3:]] == [
        ("completed", {"id": first}),
        ("handed_back", {"count": 1, "ids": [second]}),
        ("stopped", {}),
    ]
