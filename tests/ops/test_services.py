"""Who owns which data stream of a balanced service is shown, and a stream is taken from its owner."""

from __future__ import annotations

import pytest
import redis

from penstock import StreamBalancer, StreamClient
from penstock.errors import NotFound
from penstock.ops import Inspector
from tests.helpers.aio import eventually

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


async def test_a_released_stream_goes_to_another_consumer(client: StreamClient, inspector: Inspector) -> None:
    first = StreamBalancer(client, "svc", id="first", recovery_interval_ms=100)
    async with first as notices:
        await first.add_stream("session-1")
        await anext(notices)
        owner = await inspector.services.release("svc", "session-1")
        assert owner.endswith("first")
        await eventually(lambda: _is_waiting_or_claimed(inspector))
    with pytest.raises(NotFound, match="nobody owns data stream 'session-9'"):
        await inspector.services.release("svc", "session-9")


async def _is_waiting_or_claimed(inspector: Inspector) -> bool:
    page = await inspector.services.streams("svc")
    return all(not stream.owner for stream in page.items)


async def test_an_unknown_service_is_not_found(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd("other-input", {"data": "x"})
    assert await inspector.services.all() == []
    with pytest.raises(NotFound, match="no balanced service 'other'"):
        await inspector.services.info("other")


async def test_services_are_seen_by_a_client_with_a_prefix(redis_url: str, raw: redis.Redis) -> None:
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    async with StreamClient.from_url(redis_url, prefix="shop") as client:
        assert [info.name for info in await Inspector(client).services.all()] == ["svc"]
