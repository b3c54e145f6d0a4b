"""Cancelling run() at any moment strands nothing."""

# async only
from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage
from penstock.runtime import aio
from tests.helpers.aio import eventually, join, next_turn, pause, start, wait_for
from tests.streams.stage import STREAM, Recorder, all_ids, pending_ids, publish, quick, running

FOREVER_MS = 60_000  # no lease runs out in these tests: what comes back was handed back


@pytest.mark.parametrize("seed", range(3))
async def test_cancelling_at_random_moments_strands_nothing(client: StreamClient, raw: redis.Redis, seed: int) -> None:
    chance = random.Random(seed)
    ended: list[int] = []

    async def handler(messages: list[StreamMessage]) -> list[str]:
        await pause(chance.uniform(0, 0.004))
        ended.extend(message.data for message in messages)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS, batch_size=5, block_ms=20, max_deliveries=50)
    consumers = []
    for turn in range(40):
        await publish(client, range(turn * 5, turn * 5 + 5))
        consumer = StreamConsumer(client, STREAM, config, handler)
        consumers.append(consumer)
        run = start(consumer.run)
        await asyncio.sleep(chance.uniform(0, 0.02))  # a random moment: there is nothing to wait for
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    last = StreamConsumer(client, STREAM, config, handler)
    consumers.append(last)
    async with running(last):
        await eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 200)
    assert set(ended) == set(range(200))
    assert pending_ids(raw) == []
    assert sum(consumer.metrics().total_dlq for consumer in consumers) == 0


@pytest.mark.usefixtures("default_server")
async def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_the_end(
    client: StreamClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, [1])
    monkeypatch.setattr(aio, "_CANCEL_S", 0.01)
    began, may_end = asyncio.Event(), asyncio.Event()

    async def stubborn(messages: list[StreamMessage]) -> list[str]:
        began.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS, shutdown_grace_ms=1)
    first, handler = StreamConsumer(client, STREAM, config, stubborn), Recorder()
    run = start(first.run)
    await wait_for(began)
    first.stop()
    await join(run)
    second = StreamConsumer(client, STREAM, config, handler)
    async with running(second):
        await eventually(lambda: second.metrics().total_acked == 1)
    may_end.set()
    assert handler.counts == [(1, 1)]
    assert "1 activities still running" in caplog.text


@pytest.mark.usefixtures("default_server")
async def test_a_cancelled_run_hands_back_at_once_and_burns_no_attempt(client: StreamClient) -> None:
    await publish(client, range(30))
    began = asyncio.Event()

    async def endless(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await pause(FOREVER_MS)
        return all_ids(messages)

    config = quick(min_idle_claim_ms=FOREVER_MS)
    consumer = StreamConsumer(client, STREAM, config, endless)
    run = start(consumer.run)
    await eventually(began.is_set)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    handler = Recorder()
    other = StreamConsumer(client, STREAM, config, handler)
    async with running(other):
        await eventually(lambda: other.metrics().total_acked == 30)
    assert sorted(handler.seen) == list(range(30))
    assert set(handler.counts) == {(1, 1)}


@pytest.mark.usefixtures("default_server")
async def test_a_second_cancellation_does_not_stop_the_hand_back(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(30))
    began = asyncio.Event()

    async def endless(messages: list[StreamMessage]) -> list[str]:
        began.set()
        await pause(FOREVER_MS)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=FOREVER_MS), endless)
    run = start(consumer.run)
    await eventually(began.is_set)
    for _ in range(3):
        run.cancel()
        await next_turn()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert consumer.metrics().total_handed_back == len(pending_ids(raw)) > 0


@pytest.mark.usefixtures("default_server")
async def test_a_timeout_around_run_works_as_for_any_coroutine(client: StreamClient) -> None:
    await publish(client, range(10))
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())

    async def run_out_of_time(limit: asyncio.Timeout) -> None:
        await eventually(lambda: consumer.metrics().total_acked == 10)
        limit.reschedule(0)

    async def run_in_time() -> None:
        async with asyncio.timeout(None) as limit:
            running_out = start(run_out_of_time, limit)
            await consumer.run()
        await running_out

    with pytest.raises(TimeoutError):
        await run_in_time()


# end async only
