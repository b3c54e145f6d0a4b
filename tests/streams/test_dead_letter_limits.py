"""The dead letters of a stream stay within the limits of the client, and what goes is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from penstock import DeadLetterLimits, DeadLetters, StreamClient, StreamConsumer
from penstock.events import Event as Occurrence
from penstock.events import EventName
from tests.helpers.aio import eventually
from tests.streams.stage import DEAD_LETTERS, GROUP, STREAM, Recorder, fail, of_kind, publish, quick, running

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url, dead_letter_limits=DeadLetterLimits(max_count=3)) as client:
        yield client


async def test_the_newest_dead_letters_are_kept(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Occurrence] = []
    await publish(client, range(10))
    config = quick(max_deliveries=1, batch_size=1)
    consumer = StreamConsumer(client, STREAM, config, Recorder(fail), on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq_trimmed == 7)
    assert [letter.data for letter in await DeadLetters(client, STREAM).list()] == [b"7", b"8", b"9"]
    assert consumer.metrics().total_dlq == 10
    counts = [event.fields["count"] for event in of_kind(events, EventName.DEAD_LETTERS_TRIMMED)]
    assert counts == [1] * 7
    assert client.dead_letter_retention.removed == {DEAD_LETTERS: 7}
    assert raw.xpending(STREAM, GROUP)["pending"] == 0


async def test_a_group_that_reads_dead_letters_misses_none(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(10))
    config = quick(max_deliveries=1, dlq_stream=DEAD_LETTERS, dlq_group="inspectors")
    consumer = StreamConsumer(client, STREAM, config, Recorder(fail))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq == 10)
    [(_, rows)] = raw.xreadgroup("inspectors", "eve", {DEAD_LETTERS: ">"})
    assert len(rows) == 10


async def test_what_is_too_old_goes_though_no_message_dies(client: StreamClient, raw: redis.Redis) -> None:
    for sequence in range(1, 11):
        raw.xadd(DEAD_LETTERS, {"data": "old"}, id=f"1000-{sequence}")  # of 1970
    events: list[Occurrence] = []
    config = quick(retention_interval_ms=50)
    consumer = StreamConsumer(client, STREAM, config, Recorder(), on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_dlq_trimmed == 10)
    assert [event.fields["count"] for event in of_kind(events, EventName.DEAD_LETTERS_TRIMMED)] == [10]
    assert raw.xlen(DEAD_LETTERS) == 0


async def test_a_dead_letter_is_written_though_its_size_may_not_be_asked_for(
    redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "&*", "+@all", "-memory")
    options = {"username": "poor", "password": "any", "dead_letter_limits": {"max_count": 2}}
    async with StreamClient.from_url(redis_url, **options) as client:
        await publish(client, range(3))
        consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1), Recorder(fail))
        async with running(consumer):
            await eventually(lambda: consumer.metrics().total_dlq_trimmed == 1)
    assert raw.xlen(DEAD_LETTERS) == 2, "the other limits hold"
    assert "cannot apply max_bytes" in caplog.text
