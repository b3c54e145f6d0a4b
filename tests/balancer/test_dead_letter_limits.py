"""The dead letters of a balanced service stay within the limits of the client."""

from __future__ import annotations

import pytest
import redis

from penstock import StreamClient
from tests.balancer.stage import LBS, add_raw, following, quick
from tests.helpers.aio import eventually

pytestmark = pytest.mark.usefixtures("default_server")
DEAD_LETTERS = "{svc-input}_dlq"


async def test_the_newest_dead_letters_are_kept(redis_url: str, raw: redis.Redis) -> None:
    bad = [raw.xadd(LBS, {"lbs-input": "no json"}) for _ in range(8)]
    add_raw(raw, "after")
    async with StreamClient.from_url(redis_url, dead_letter_limits={"max_count": 3}) as client:
        async with following(quick(client, "a")) as (a,):
            await eventually(lambda: a.added == ["after"])
        assert [record[b"dlq_id"] for _, record in raw.xrange(DEAD_LETTERS)] == bad[5:]
        assert client.dead_letter_upkeep.removed == {DEAD_LETTERS: 5}
