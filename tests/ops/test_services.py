"""Who owns which data stream of a balanced service is shown, and a stream is taken from its owner."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import penstock.ops.balancer as balancer_module
from penstock import StreamBalancer, StreamClient, StreamDisowned, StreamExpired
from penstock.errors import NotFound
from penstock.keys import BalancerKeys
from penstock.ops import Inspector
from penstock.ops.model import BalancedStream, Page
from penstock.redis.scripts import script
from tests.helpers.round_trips import count_round_trips

pytestmark = pytest.mark.usefixtures("default_server")


async def test_owners_and_the_time_of_their_locks_are_shown(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    first = StreamBalancer(client, "svc", id="first")
    async with first as notices:
        await first.add_stream("session-1")
        await anext(notices)
        [stream] = (await inspector.services.streams("svc")).items
        assert stream.data_stream == "session-1"
        assert stream.owner.endswith("first")
        assert stream.lock_ms is not None
        assert 0 < stream.lock_ms <= 60_000
        [info] = await inspector.services.all()
        assert (info.name, info.streams, info.waiting) == ("svc", 1, 0)
        assert [peer.alive_ms > 0 for peer in info.peers] == [True]
        assert (await inspector.services.streams("svc", is_waiting=True)).items == ()
        assert len((await inspector.services.streams("svc", owner=stream.owner)).items) == 1


async def test_a_stream_that_nobody_has_read_yet_waits(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    await StreamBalancer(client, "svc", id="producer").add_stream("session-1")
    info = await inspector.services.info("svc")
    assert (info.streams, info.waiting) == (0, 1)


async def test_a_released_stream_is_lost_by_its_owner_and_goes_to_another_consumer(
    client: StreamClient, inspector: Inspector
) -> None:
    times: dict[str, Any] = {"heartbeat_interval_ms": 50, "recovery_interval_ms": 100}
    first = StreamBalancer(client, "svc", id="first", **times)
    async with first as notices:
        await first.add_stream("session-1")
        await anext(notices)
        second = StreamBalancer(client, "svc", id="second", **times)
        async with second as others:
            assert (await inspector.services.release("svc", "session-1")).endswith("first")
            expired = await anext(others)
            assert isinstance(expired, StreamExpired)
            await second.claim(expired.payload)
            notice = await anext(notices)
            while isinstance(notice, StreamExpired):  # it may be offered to the first one, too
                notice = await anext(notices)
            assert isinstance(notice, StreamDisowned)
            [stream] = (await inspector.services.streams("svc")).items
            assert stream.owner.endswith("second")
    with pytest.raises(NotFound, match="data stream 'session-9' of service"):
        await inspector.services.release("svc", "session-9")


async def test_a_stream_is_not_released_from_one_who_does_not_hold_it_any_more(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with StreamBalancer(client, "svc", id="first") as notices:
        await StreamBalancer(client, "svc", id="producer").add_stream("session-1")
        owned = (await anext(notices)).payload
        known = await inspector.services.streams("svc")
        raw.set(owned.lock, "second")  # after the look, before the release

        async def seen_before(*_: object, **__: object) -> Page[BalancedStream]:
            return known

        monkeypatch.setattr(inspector.services, "streams", seen_before)
        with pytest.raises(NotFound, match="does not hold data stream 'session-1' of service 'svc' any more"):
            await inspector.services.release("svc", "session-1")
    assert raw.get(owned.lock) == b"second"


async def test_a_release_that_is_sent_again_says_that_the_stream_was_released(
    client: StreamClient, raw: redis.Redis
) -> None:
    first = StreamBalancer(client, "svc", id="first")
    async with first as notices:
        await first.add_stream("session-1")
        owned = (await anext(notices)).payload
        keys = BalancerKeys("svc")
        args = [keys.group, first.id, owned.id_in_lbs, "released", 86_400_000]
        with raw.pipeline(transaction=True) as both:
            for _ in range(2):
                both.eval(script("ops/release").source, 2, keys.stream, owned.lock, *args)
            assert both.execute() == [1, 1]


async def test_a_heartbeat_right_after_the_release_takes_nothing_back(client: StreamClient, raw: redis.Redis) -> None:
    first = StreamBalancer(client, "svc", id="first")
    async with first as notices:
        await first.add_stream("session-1")
        [owned] = [(await anext(notices)).payload]
        keys = BalancerKeys("svc")
        with raw.pipeline(transaction=True) as both:  # within the millisecond in which the lock is still there
            args = [keys.group, first.id, owned.id_in_lbs, "released", 86_400_000]
            both.eval(script("ops/release").source, 2, keys.stream, owned.lock, *args)
            beat = [keys.group, first.id, 2_000, 3_000, 1, 0, 10_000, 1, owned.id_in_lbs]
            both.eval(script("balancer/beat").source, 3, keys.stream, keys.peers, owned.lock, *beat)
            assert both.execute() == [1, [owned.id_in_lbs.encode()]]


async def test_a_page_of_streams_ends_after_so_many_of_others(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = BalancerKeys("svc")
    raw.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
    balancer = StreamBalancer(client, "svc", id="producer")
    for n in range(11):
        await balancer.add_stream(f"session-{n:02}")
    ids = [entry_id.decode() for entry_id, _ in raw.xreadgroup(keys.group, "one", {keys.stream: ">"})[0][1]]
    raw.set(keys.lock("session-08", ids[8]), "me", px=60_000)
    monkeypatch.setattr(balancer_module, "_PAGE", 2)
    monkeypatch.setattr(balancer_module, "_MAX_STEPS", 2)
    first = await inspector.services.streams("svc", owner="me")
    assert (first.items, first.cursor) == ((), ids[3])
    second = await inspector.services.streams("svc", owner="me", cursor=first.cursor)
    assert (second.items, second.cursor) == ((), ids[7])
    last = await inspector.services.streams("svc", owner="me", cursor=second.cursor)
    assert ([each.data_stream for each in last.items], last.cursor) == (["session-08"], "")
    assert await inspector.services.release("svc", "session-08") == "me"


async def test_large_entries_of_a_service_are_read_in_pieces_without_what_is_not_shown(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    keys = BalancerKeys("svc")
    raw.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
    for n in range(8):
        raw.xadd(keys.stream, {"lbs-input": f'{{"DataStreamName": "session-{n}"}}', "other": "x" * 300_000})
    raw.xadd(keys.stream, {"other": "x"})
    raw.xreadgroup(keys.group, "one", {keys.stream: ">"})
    raw.config_resetstat()
    assert [each.data_stream for each in (await inspector.services.streams("svc")).items] == [
        f"session-{n}" for n in range(8)
    ]
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] >= 4


async def test_many_services_are_listed_in_few_round_trips(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        raw.xgroup_create(f"svc{n:02}-input", f"svc{n:02}-group", "0", mkstream=True)
        await StreamBalancer(client, f"svc{n:02}", id="producer").add_stream("session-1")
    one_by_one = [await inspector.services.info(f"svc{n:02}") for n in range(30)]
    trips = count_round_trips(monkeypatch, await client.connection(""))
    assert await inspector.services.all() == one_by_one
    assert len(trips) < 15, "none for each of the services"


async def test_an_unknown_service_is_not_found(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd("other-input", {"data": "x"})
    assert await inspector.services.all() == []
    with pytest.raises(NotFound, match="balanced service 'other' does not exist"):
        await inspector.services.info("other")


async def test_services_are_seen_by_a_client_with_a_prefix(redis_url: str, raw: redis.Redis) -> None:
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    async with StreamClient.from_url(redis_url, prefix="shop") as client:
        assert [info.name for info in await Inspector(client).services.all()] == ["svc"]
