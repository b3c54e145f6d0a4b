"""The dead letters of a queue stay within the limits of the client; those that were imported are kept."""

from __future__ import annotations

import pytest
import redis

from penstock import DeadLetterLimits, StreamClient
from penstock.events import Event, EventName
from penstock.queue.importer import import_queue
from tests.queue.stage import DEAD_LETTERS, NAME, fail, make_queue, of_kind, payloads

pytestmark = pytest.mark.usefixtures("default_server")
FEW = DeadLetterLimits(max_count=3)


async def test_the_newest_dead_letters_are_kept(redis_url: str, raw: redis.Redis) -> None:
    events: list[Event] = []
    async with StreamClient.from_url(redis_url, dead_letter_limits=FEW) as client:
        queue = make_queue(client, max_delivery_count=1, on_event=events.append)
        for number in range(8):
            await queue.publish(f"order {number}")
            await fail(queue)
            await fail(queue)  # takes it up again, and gives it up
    assert payloads(raw, DEAD_LETTERS) == [b"order 5", b"order 6", b"order 7"]
    assert [event.fields["count"] for event in of_kind(events, EventName.DEAD_LETTERS_TRIMMED)] == [1] * 5
    assert {event.stream for event in of_kind(events, EventName.DEAD_LETTERS_TRIMMED)} == {NAME}


async def test_an_import_takes_all_dead_letters_along(redis_url: str, raw: redis.Redis) -> None:
    for number in range(8):
        raw.lpush("orders::dlq", f"order {number}")
    async with StreamClient.from_url(redis_url, dead_letter_limits=FEW) as client:
        report = await import_queue(client, "orders")
    assert report.dead_letters == 8
    assert raw.xlen(DEAD_LETTERS) == 8
