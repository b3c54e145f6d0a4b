"""Cancelling a consumer at any moment strands nothing: what was handed out to nobody is handled by the next."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from penstock import ConsumerConfig, RedisMessageQueue, StreamClient, StreamConsumer, StreamMessage
from penstock.testing import FaultProxy
from tests.faults.checker import body
from tests.faults.conftest import GROUP, STREAM, Scene

pytestmark = pytest.mark.servers("7.0")

# A lease so long that it recovers nothing here.
CONFIG = ConsumerConfig(group=GROUP, min_idle_claim_ms=120_000, block_ms=200, batch_size=7, handle_signals=False)


class Recorder:
    """A handler that remembers what it finished and with which attempt it began."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.attempts: set[int] = set()

    async def __call__(self, message: StreamMessage) -> None:
        self.attempts.add(message.attempts)
        await asyncio.sleep(0.001)
        self.done.append(message.id)


async def _cancelled(step: asyncio.Task[object], after_s: float) -> None:
    await asyncio.sleep(after_s)
    step.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await step


@pytest.mark.parametrize("seed", range(3))
async def test_a_run_that_is_cancelled_at_any_moment_strands_nothing(seed: int, scene: Scene) -> None:
    chance = random.Random(seed)
    ids = await asyncio.to_thread(scene.publish, *(body(n) for n in range(200)))
    recorder = Recorder()
    async with StreamClient.from_url(scene.url) as client:
        for _ in range(20):
            consumer = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
            await _cancelled(asyncio.create_task(consumer.run()), chance.uniform(0, 0.06))
        last = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
        while not scene.checker.is_quiet():
            await last.run_once()
        await last.close()

    assert set(recorder.done) == set(ids)
    assert recorder.attempts == {1}, "handing back burns no attempt"
    scene.checker.check_conserved(ids)
    scene.checker.check_quiet()


@pytest.mark.parametrize("seed", range(3))
async def test_a_single_pass_that_is_cancelled_while_reading_strands_nothing(
    seed: int, scene: Scene, fault_proxy: FaultProxy
) -> None:
    chance = random.Random(seed)
    ids = await asyncio.to_thread(scene.publish, *(body(n) for n in range(100)))
    recorder = Recorder()
    fault_proxy.delay_replies(0.005)  # so that reads are under way for a while
    async with StreamClient.from_url(fault_proxy.url) as client:
        consumer = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
        for _ in range(40):
            await _cancelled(asyncio.create_task(consumer.run_once()), chance.uniform(0, 0.05))
        fault_proxy.heal()
        while not scene.checker.is_quiet():
            await consumer.run_once()
        await consumer.close()

    assert set(recorder.done) == set(ids)
    scene.checker.check_conserved(ids)
    scene.checker.check_quiet()


async def test_a_read_that_is_cancelled_while_it_waits_takes_no_message_along(scene: Scene) -> None:
    recorder = Recorder()
    async with StreamClient.from_url(scene.url) as client:
        consumer = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
        await consumer.run_once()
        for n in range(20):
            reading = asyncio.create_task(consumer.run_once())
            await asyncio.sleep(0.01)
            published = asyncio.create_task(asyncio.to_thread(scene.publish, body(n)))
            await _cancelled(reading, 0.002 * (n % 5))
            await published
        while not scene.checker.is_quiet():
            await consumer.run_once()
        await consumer.close()

    assert set(recorder.done) == set(scene.published)
    scene.checker.check_conserved(scene.published)
    scene.checker.check_quiet()


async def test_a_read_that_reaches_the_server_after_its_consumer_has_gone_takes_no_message_along(
    scene: Scene, fault_proxy: FaultProxy
) -> None:
    recorder = Recorder()
    async with StreamClient.from_url(fault_proxy.url) as client:
        consumer = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
        late = fault_proxy.late_request("XREADGROUP", 0.5, nth=2)
        running = asyncio.create_task(consumer.run())
        await asyncio.to_thread(fault_proxy.wait_for, "XREADGROUP", 2)
        await _cancelled(running, 0.0)
        ids = await asyncio.to_thread(scene.publish, body(1))
        assert await asyncio.to_thread(late.wait)
        heir = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
        await heir.run_once()
        await heir.close()

    assert recorder.done == ids
    scene.checker.check_conserved(ids)
    scene.checker.check_quiet()


async def test_a_wait_of_a_queue_that_reaches_the_server_after_it_was_cancelled_takes_no_message_along(
    scene: Scene, fault_proxy: FaultProxy
) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client, StreamClient.from_url(scene.url) as other:
        queue, heir = RedisMessageQueue("jobs", client=client), RedisMessageQueue("jobs", client=other)
        late = fault_proxy.late_request("XREADGROUP", 0.5)
        waiting = asyncio.create_task(queue.process_message().__aenter__())
        await asyncio.to_thread(fault_proxy.wait_for, "XREADGROUP")
        await _cancelled(waiting, 0.0)
        await queue.close()
        await heir.publish("message")
        assert await asyncio.to_thread(late.wait)
        async with heir.process_message() as message:
            assert message == "message"
        await heir.close()
