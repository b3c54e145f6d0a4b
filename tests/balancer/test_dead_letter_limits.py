"""The dead letters of a balanced service stay within the limits of the client."""

from __future__ import annotations

import pytest
import redis

from penstock import JsonSerializer, OwnedStream, StreamClient
from tests.balancer.stage import LBS, add_raw, following, quick, running
from tests.helpers.aio import Event, eventually, wait_for

pytestmark = pytest.mark.usefixtures("default_server")
DEAD_LETTERS = "{svc-input}_dlq"


async def test_the_newest_dead_letters_are_kept(redis_url: str, raw: redis.Redis) -> None:
    bad = [raw.xadd(LBS, {"lbs-input": "no json"}) for _ in range(8)]
    add_raw(raw, "after")
    async with StreamClient.from_url(redis_url, dead_letter_limits={"max_count": 3}) as client:
        async with following(quick(client, "a")) as (a,):
            await eventually(lambda: a.added == ["after"])
        assert [record[b"dlq_id"] for _, record in raw.xrange(DEAD_LETTERS)] == bad[5:]
        assert client.dead_letter_retention.removed == {DEAD_LETTERS: 5}


async def test_entries_of_a_data_stream_that_cannot_be_decoded_are_bounded_too(
    redis_url: str, raw: redis.Redis
) -> None:
    bad, began = [raw.xadd("session-1", {"data": "no json"}) for _ in range(8)], Event()
    raw.xadd("session-1", {"data": "1"})

    async def handle(stream: OwnedStream) -> None:
        async for _ in stream:
            began.set()

    async with StreamClient.from_url(redis_url, dead_letter_limits={"max_count": 3}) as client:
        async with running((quick(client, "a"), handle), serializer=JsonSerializer()):
            add_raw(raw, "session-1")
            await wait_for(began)
        assert [record[b"dlq_id"] for _, record in raw.xrange("session-1_dlq")] == bad[5:]
        assert client.dead_letter_retention.removed == {"session-1_dlq": 5}
