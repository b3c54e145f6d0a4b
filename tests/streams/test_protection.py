"""Signed and encrypted payloads: what a stranger writes or copies elsewhere is a dead letter, and neighbours go on."""

from __future__ import annotations

import pytest
import redis

from penstock import DeadLetters, Protection, StreamClient, StreamConsumer, StreamProducer
from penstock.protection import Mode
from tests.helpers.aio import eventually
from tests.streams.stage import STREAM, Recorder, all_ids, dead_letters, quick, running

KEY = b"k" * 32


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
@pytest.mark.acl(stream=("orders", "elsewhere"))
async def test_only_what_a_holder_of_the_key_wrote_for_this_stream_is_handled(
    mode: Mode, redis_url: str, raw: redis.Redis
) -> None:
    async with StreamClient.from_url(redis_url, protection=Protection(mode, {"2026": KEY})) as client:
        await StreamProducer(client, "elsewhere").push({"n": "copied"}, message_id="m-1")
        [(_, copied)] = raw.xrange("elsewhere")
        raw.xadd(STREAM, {"data": b'{"n": "plain"}', "message_id": "m-0"})
        raw.xadd(STREAM, copied)
        producer = StreamProducer(client, STREAM)
        await producer.push({"n": 1})
        await producer.push({"n": 2}, key="customer-7", headers={"tenant": "a"})
        await producer.push_many([{"n": 3}, {"n": 4}])
        handler = Recorder()
        consumer = StreamConsumer(client, STREAM, quick(), handler)
        async with running(consumer):
            await eventually(lambda: consumer.metrics().total_acked == 4 and consumer.metrics().total_dlq == 2)
        assert [data["n"] for data in handler.seen] == [1, 2, 3, 4]
        letters = dead_letters(raw)
        assert [letter["dlq_reason"] for letter in letters] == [b"not_authentic"] * 2
        assert [letter["dlq_error"] for letter in letters] == [b"NotAuthentic"] * 2


async def test_a_message_that_runs_again_or_is_redriven_opens_again(redis_url: str, raw: redis.Redis) -> None:
    async with StreamClient.from_url(redis_url, protection=Protection("encrypt", {"2026": KEY})) as client:
        await StreamProducer(client, STREAM).push({"n": 1})
        runs: list[int] = []

        def flaky(messages: list[object]) -> list[str]:
            runs.append(len(messages))
            if len(runs) < 3:
                raise ValueError("not yet")
            return all_ids(messages)  # type: ignore[arg-type]

        handler = Recorder(flaky)
        consumer = StreamConsumer(client, STREAM, quick(max_deliveries=2), handler)
        async with running(consumer):
            await eventually(lambda: consumer.metrics().total_dlq == 1)
            await DeadLetters(client, STREAM).redrive()
            await eventually(lambda: consumer.metrics().total_acked == 1)
        assert handler.seen == [{"n": 1}] * 3
