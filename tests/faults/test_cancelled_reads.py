"""Cancelling a consumer at any moment strands nothing: what was handed out to nobody is handled by the next.

Nor does a read that timed out, should it reach the server after all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
import redis

from penstock import ConsumerConfig, RedisGateway, RedisMessageQueue, StreamClient, StreamConsumer, StreamMessage
from penstock.delivery import reader as stream_reader
from penstock.errors import CommandTimeout
from penstock.redis.scripts import script
from penstock.task import Priority, Task
from penstock.tasks import Handlers, RedisTaskQueue, Worker, blocking_reads
from penstock.testing import FaultProxy
from tests.faults.checker import body
from tests.faults.conftest import GROUP, STREAM, Scene
from tests.helpers.aio import eventually, pause

pytestmark = pytest.mark.usefixtures("default_server")

# A lease so long that it recovers nothing here.
CONFIG = ConsumerConfig(group=GROUP, min_idle_claim_ms=120_000, block_ms=200, batch_size=7, handle_signals=False)


class Recorder:
    """A handler that remembers what it finished and with which attempt it began."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.attempts: set[int] = set()

    async def __call__(self, message: StreamMessage) -> None:
        self.attempts.add(message.attempts)
        await pause(0.001)
        self.done.append(message.id)


async def _cancelled(step: asyncio.Task[object], after_s: float) -> None:
    await asyncio.sleep(after_s)  # any moment: there is nothing to wait for
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
            await eventually(lambda reading=reading: reading.done() or scene.raw.info("clients")["blocked_clients"])
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


# --- reads that time out ----------------------------------------------------------------------------


async def test_a_read_that_reaches_the_server_after_it_timed_out_takes_no_message_along(
    scene: Scene, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    async with StreamClient.from_url(fault_proxy.url) as client, StreamClient.from_url(scene.url) as other:
        consumer = StreamConsumer(client, STREAM, CONFIG, message_handler=recorder)
        await consumer.run_once()
        late = fault_proxy.late_request("XREADGROUP", 2.0)
        with monkeypatch.context() as patched:
            patched.setattr(stream_reader, "REPLY_MARGIN_S", 0.1)
            with pytest.raises(CommandTimeout):
                await consumer.run_once()
        await consumer.run_once()
        ids = await asyncio.to_thread(scene.publish, body(1))
        assert await asyncio.to_thread(late.wait)
        heir = StreamConsumer(other, STREAM, CONFIG, message_handler=recorder)
        await heir.run_once()
        await heir.close()
        await consumer.close()
    assert recorder.done == ids


async def test_a_wait_of_a_queue_that_reaches_the_server_after_it_timed_out_takes_no_message_along(
    scene: Scene, fault_proxy: FaultProxy
) -> None:
    async with StreamClient.from_url(fault_proxy.url, socket_timeout=1) as client:
        gateway = RedisGateway(redis_client=client, message_wait_interval_seconds=0.1, retry_budget_seconds=0)
        queue = RedisMessageQueue("jobs", gateway=gateway)
        async with queue.process_message() as message:
            assert message is None
        late = fault_proxy.late_request("XREADGROUP", 4.0, containing=b"BLOCK")
        with pytest.raises(CommandTimeout):
            await queue.process_message().__aenter__()
        async with queue.process_message() as message:
            assert message is None
        async with StreamClient.from_url(scene.url) as other:
            heir = RedisMessageQueue("jobs", client=other)
            await heir.publish("message")
            assert await asyncio.to_thread(late.wait)
            async with heir.process_message() as message:
                assert message == "message"
            await heir.close()
        await queue.close()


@pytest.mark.parametrize("command", ["XREADGROUP", "EVALSHA"])
async def test_a_pop_that_reaches_the_server_after_it_timed_out_takes_no_task_along(
    command: str, scene: Scene, fault_proxy: FaultProxy, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.script_load(script("tasks/take").source)
    url = f"{fault_proxy.url}?socket_timeout=1"
    async with RedisTaskQueue(url, "jobs") as queue, RedisTaskQueue(scene.url, "jobs") as heir:
        assert await queue.pop(timeout=0.1) is None
        wanted = b"BLOCK" if command == "XREADGROUP" else script("tasks/take").sha.encode()
        late = fault_proxy.late_request(command, 4.0, containing=wanted)
        if command == "XREADGROUP":
            with monkeypatch.context() as patched:
                patched.setattr(blocking_reads, "_REPLY_MARGIN_S", 0.1)
                with pytest.raises(CommandTimeout):
                    await queue.pop(timeout=0.1)
        assert await queue.pop(timeout=0.1) is None
        await heir.enqueue(Task(kind="render", id="one"))
        assert await asyncio.to_thread(late.wait)
        found = await heir.pop(block=False)
    assert found is not None
    assert (found.id, found.attempts) == ("one", 1)


# --- tasks ------------------------------------------------------------------------------------------


async def test_a_pop_that_reaches_the_server_after_it_was_cancelled_takes_no_task_along(
    scene: Scene, fault_proxy: FaultProxy
) -> None:
    async with RedisTaskQueue(scene.url, "jobs") as heir:
        queue = RedisTaskQueue(fault_proxy.url, "jobs")
        late = fault_proxy.late_request("XREADGROUP", 0.5)
        waiting = asyncio.create_task(queue.pop(timeout=60))
        await asyncio.to_thread(fault_proxy.wait_for, "XREADGROUP")
        await _cancelled(waiting, 0.0)
        await queue.close()
        await heir.enqueue(Task(kind="render", id="one"))
        assert await asyncio.to_thread(late.wait)
        found = await heir.pop(block=False)
    assert found is not None
    assert (found.id, found.attempts) == ("one", 1)


@pytest.mark.parametrize("name", ["tasks/take", "streams/take_due", "streams/begin"])
async def test_a_task_that_was_handed_to_a_cancelled_pop_is_handed_back_at_the_end(
    name: str, scene: Scene, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    raw.script_load(script(name).source)
    async with RedisTaskQueue(scene.url, "jobs") as heir:
        queue = RedisTaskQueue(fault_proxy.url, "jobs")
        await heir.enqueue(Task(kind="render", id="one"))
        runs = 0 if name == "tasks/take" else 1
        for _ in range(runs):
            assert await heir.pop(block=False)
            await heir.nack("one")
        assert await queue.pending_count() == 1  # the connection is there
        lost = fault_proxy.drop_reply("EVALSHA", containing=script(name).sha.encode(), ending="black_hole")
        popping = asyncio.create_task(queue.pop(timeout=60))
        assert await asyncio.to_thread(lost.wait)
        await _cancelled(popping, 0.0)
        fault_proxy.reset_all()
        assert (await heir.list_pending())[0].consumer == queue.consumer
        await queue.close()
        found = await heir.pop(block=False)
    assert found is not None
    assert (found.id, found.attempts) == ("one", runs + 1)


@pytest.mark.parametrize("seed", range(3))
async def test_pops_that_are_cancelled_at_any_moment_strand_nothing(
    seed: int, scene: Scene, fault_proxy: FaultProxy
) -> None:
    chance, found = random.Random(seed), list[Task]()
    tasks = [Task(kind=f"kind{n % 2}", priority=list(Priority)[n % 3], id=f"task{n}") for n in range(40)]

    async def pop() -> None:
        found.extend(await queue.pop_many(3, timeout=0.05, provides=(), kinds=("kind0", "kind1")))

    async with RedisTaskQueue(fault_proxy.url, "jobs") as queue:
        await queue.enqueue_many(tasks)
        fault_proxy.delay_replies(0.005)  # so that reads are under way for a while
        for _ in range(40):
            await _cancelled(asyncio.create_task(pop()), chance.uniform(0, 0.06))
        fault_proxy.heal()
        while len(found) < len(tasks):
            await pop()
    assert sorted(task.id for task in found) == sorted(task.id for task in tasks)
    assert {task.attempts for task in found} == {1}


async def test_a_worker_whose_run_is_cancelled_hands_back_what_waits(scene: Scene) -> None:
    handlers, began = Handlers(), asyncio.Event()

    @handlers.task("render")
    async def render(_task: Task) -> None:
        began.set()
        await asyncio.Event().wait()

    async def two_are_taken() -> bool:
        return len(await heir.list_pending()) > 1

    async with RedisTaskQueue(scene.url, "jobs") as queue, RedisTaskQueue(scene.url, "jobs") as heir:
        await heir.enqueue_many([Task(kind="render") for _ in range(5)])
        worker = Worker(queue, handlers, concurrency=1, handle_signals=False)
        working = asyncio.create_task(worker.run())
        await eventually(began.is_set)
        await eventually(two_are_taken)
        await _cancelled(working, 0.0)
        found: list[Task] = []

        async def all_came() -> bool:
            found.extend(await heir.pop_many(10, block=False))
            return len(found) >= 4

        await eventually(all_came)
    assert [task.attempts for task in found] == [1] * 4


async def test_a_worker_whose_run_is_cancelled_stores_what_it_has_done(scene: Scene) -> None:
    handlers = Handlers()

    @handlers.task("render")
    async def render(_task: Task) -> None:
        asyncio.get_running_loop().call_soon(working.cancel)

    async with RedisTaskQueue(scene.url, "jobs") as queue:
        await queue.enqueue(Task(kind="render", id="one"))
        working = asyncio.create_task(Worker(queue, handlers, handle_signals=False).run())
        with pytest.raises(asyncio.CancelledError):
            await working
        assert await queue.get_result("one") is not None
        assert await queue.pending_count() == 0


async def test_a_worker_that_is_cancelled_while_it_winds_up_waits_for_no_handler(scene: Scene) -> None:
    handlers, began = Handlers(), asyncio.Event()

    @handlers.task("render")
    async def render(_task: Task) -> None:
        began.set()
        await asyncio.Event().wait()

    async with RedisTaskQueue(scene.url, "jobs") as queue:
        await queue.enqueue(Task(kind="render", id="one"))
        worker = Worker(queue, handlers, handle_signals=False, shutdown_grace_ms=3_600_000)
        working = asyncio.create_task(worker.run())
        await eventually(began.is_set)
        worker.stop()
        await _cancelled(working, 0.1)
        again = await queue.pop(timeout=60)
    assert again is not None
    assert (again.id, again.attempts) == ("one", 1)
