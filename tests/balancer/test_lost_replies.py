"""Replies that get lost on the way: nothing is added twice, nothing is stranded, what was done stays done."""

from __future__ import annotations

import redis

from penstock import StreamClient
from penstock.events import Event, EventName
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.balancer.stage import LBS, add_raw, following, locks, pending, quick
from tests.helpers.aio import eventually


def sha(name: str) -> bytes:
    return script(name).sha.encode()


async def test_a_lost_reply_adds_no_second_entry(raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client:
        balancer = quick(client, "a")
        await balancer.add_stream("first")
        fault_proxy.drop_reply("EVALSHA", containing=sha("balancer/add"))
        entry_id = await balancer.add_stream("second")
    assert [found.decode() for found, _ in raw.xrange(LBS)][1:] == [entry_id]


async def test_a_stream_whose_reading_got_lost_is_found(raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client, following(quick(client, "a")) as (a,):
        add_raw(raw, "first")
        await eventually(lambda: a.owned == ["first"])
        fault_proxy.drop_reply("XREADGROUP")
        fault_proxy.drop_reply("EVALSHA", containing=sha("balancer/take"))
        add_raw(raw, "second")
        await eventually(lambda: sorted(a.owned) == ["first", "second"])


async def test_a_stream_whose_locking_got_lost_is_owned(raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client, following(quick(client, "a")) as (a,):
        add_raw(raw, "first")
        await eventually(lambda: a.owned == ["first"])
        fault_proxy.drop_reply("EVALSHA", containing=sha("balancer/own"))
        add_raw(raw, "second")
        await eventually(lambda: sorted(a.owned) == ["first", "second"])
        await eventually(lambda: len(locks(raw)) == 2)


async def test_a_stream_whose_end_got_lost_is_finished(raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client, following(quick(client, "a")) as (a,):
        add_raw(raw, "first")
        await eventually(lambda: a.owned == ["first"])
        add_raw(raw, "second")
        await eventually(lambda: len(a.owned) == 2)
        await a.balancer.done_stream("first")
        fault_proxy.drop_reply("EVALSHA", containing=sha("balancer/done"))
        await a.balancer.done_stream("second")
        assert (raw.xlen(LBS), pending(raw)) == (0, {})
        assert a.disowned == []


async def test_an_entry_whose_move_to_the_dead_letters_got_lost_is_reported(
    raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    events = list[Event]()

    def reported() -> list[str]:
        return [event.fields["id"] for event in events if event.name is EventName.DEAD_LETTERED]

    async with (
        StreamClient.from_url(fault_proxy.url) as client,
        following(quick(client, "a", on_event=events.append)),
    ):
        first = raw.xadd(LBS, {"lbs-input": "no json"}).decode()
        await eventually(lambda: reported() == [first])
        fault = fault_proxy.drop_reply("EVALSHA", containing=sha("balancer/dead_letter"))
        second = raw.xadd(LBS, {"lbs-input": "nor this"}).decode()
        await eventually(lambda: fault.has_happened and not pending(raw))
        await eventually(lambda: reported() == [first, second])
    assert raw.xlen("{svc-input}_dlq") == 2
