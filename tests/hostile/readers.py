"""Each part of Penstock that reads entries, run over hostile ones with good messages between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import redis

import penstock
from penstock import ConsumerConfig, JsonSerializer, OwnedStream, StreamClient, StreamMessage
from penstock.task import Task, encode
from penstock.tasks import Handlers, RedisTaskQueue, Worker
from penstock.testing.hostile import KINDS, hostile_entries
from tests.hostile.history import History, check_memory, dead_lettered, feed, unsettled

ROUND = 250
"""Hostile entries between two looks: after each everything must be settled."""
PATIENCE_S = 60.0
_LONG_MS = 60_000
_POLL_S = 0.05


Begin = Callable[[], "tuple[asyncio.Task[Any], Callable[[], object]]"]


class Run:
    """One reader, its stream and its history."""

    def __init__(self, url: str, raw: redis.Redis, seed: int, count: int, kinds: Iterable[str] = KINDS) -> None:
        self.url, self.raw, self.count = url, raw, count
        self.others: dict[str, bytes] = {}
        self.history = History()
        self._seed, self._kinds = seed, kinds
        self.patience_s = PATIENCE_S

    async def rounds(
        self,
        stream: str,
        payloads: Iterable[bytes],
        add_good: Callable[[int], Awaitable[object]],
        left: Callable[[], set[str]],
        begin: Begin,
        field: str = "data",
    ) -> None:
        """Feed the stream while nobody reads, then have a reader settle everything, round by round; end where it does not.

        `begin()` starts a reader and returns it with what stops it.
        """
        entries = hostile_entries(
            self._seed, self.count, kinds=self._kinds, payloads=payloads, others=self.others, payload_field=field
        )
        for first in range(0, self.count, ROUND):
            await feed(self.raw, stream, entries, self.history, min(ROUND, self.count - first), add_good)
            reading, stop = begin()
            is_settled = await self._settled(left, reading)
            await self._end(reading, stop)
            if not is_settled or self.history.raised:
                break
        self.history.left = left()

    async def _settled(self, left: Callable[[], set[str]], reading: asyncio.Task[Any]) -> bool:
        """Wait until nothing is left, for as long as something changes."""
        before, deadline = set[str](), 0.0
        while found := left():
            if found != before:
                before, deadline = found, time.monotonic() + self.patience_s
            if reading.done() or time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)  # nothing tells when a reader has settled an entry
        return True

    async def _end(self, reading: asyncio.Task[Any], stop: Callable[[], object]) -> None:
        stop()
        try:
            async with asyncio.timeout(self.patience_s):
                await reading
        except TimeoutError:
            self.history.raised.append("the reader does not stop")
        except Exception as error:
            self.history.raised.append(f"{type(error).__name__}: {error}"[:300])

    def noted(self, data: Any, entry_id: str) -> None:
        """Note a run of a handler."""
        n = data.get("good") if isinstance(data, dict) else None
        if isinstance(n, int):
            self.history.handled[n] += 1
        else:
            self.history.given[entry_id] += 1


async def read_stream(run: Run) -> History:
    """A consumer of a stream that is trimmed all the time, with a message handler."""
    config = ConsumerConfig(
        group="workers", block_ms=50, min_idle_claim_ms=_LONG_MS, retry_initial_delay_ms=10, retry_max_delay_ms=20,
        max_stream_size=20, retention_interval_ms=50, handle_signals=False,
    )  # fmt: skip

    async def handle(message: StreamMessage) -> None:
        run.noted(message.data, message.id)

    async with StreamClient.from_url(run.url) as client:
        producer = penstock.StreamProducer(client, "orders", max_len=2 * ROUND)

        def begin() -> tuple[asyncio.Task[Any], Callable[[], object]]:
            consumer = penstock.StreamConsumer(client, "orders", config, message_handler=handle)
            return asyncio.create_task(consumer.run()), consumer.stop

        async def add(n: int) -> None:
            run.others |= {"message_id": b"good-%d" % n, "dedup_key": b"key-%d" % n}
            await producer.push({"good": n}, message_id=f"good-{n}", headers={"n": str(n)}, dedup_key=f"key-{n}")

        await producer.ensure_group("workers")
        await run.rounds("orders", [b'{"n": -1}'], add, lambda: unsettled(run.raw, "orders", "workers"), begin)
        run.history.dead = dead_lettered(run.raw, "orders_dlq")
    return run.history


async def read_queue(run: Run) -> History:
    """A loop around `process_message()`."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(StreamClient.from_url(run.url))
        gateway = penstock.RedisGateway(
            redis_client=client, message_wait_interval_seconds=1, message_visibility_timeout_seconds=60,
            max_delivery_count=3, dead_letter_queue="mail::dlq",
        )  # fmt: skip
        queue = penstock.RedisMessageQueue("mail", gateway=gateway, retry_delay_seconds=0.01)
        stack.push_async_callback(queue.close)

        async def add(n: int) -> None:
            run.others |= {"message_id": b"good-%d" % n, "dedup_key": b"key-%d" % n}
            await queue.publish({"good": n})

        async def work() -> None:
            stop.clear()
            while not stop.is_set():
                processing = queue.process_message()
                async with processing as message:
                    if message is not None:
                        text = message.decode(errors="replace") if isinstance(message, bytes) else message
                        good = {"good": int(text[9:-1])} if text.startswith('{"good": ') else None
                        run.noted(good, processing.message_id or "")

        def begin() -> tuple[asyncio.Task[Any], Callable[[], object]]:
            return asyncio.create_task(work()), stop.set

        await run.rounds("mail", [b"a text"], add, lambda: unsettled(run.raw, "mail", "queue"), begin)
        run.history.dead = dead_lettered(run.raw, "mail::dlq")
    return run.history


def strange_tasks(count: int = 20_000) -> list[bytes]:
    """Return tasks that nobody enqueued, as they are written into entries."""
    return [encode(Task(kind="job", id=f"strange-{n}", payload={"n": -1})) for n in range(count)]


async def read_tasks(run: Run) -> History:
    """A worker of tasks, whose results must be those of the tasks that were enqueued."""
    handlers = Handlers()

    @handlers.task("job")
    async def job(task: Task) -> object:
        n = task.payload.get("good")
        if isinstance(n, int) and task.id == f"good-{n}":
            run.history.handled[n] += 1
        return n

    async with RedisTaskQueue(run.url, name="jobs", idle_ms=_LONG_MS) as queue:

        def begin() -> tuple[asyncio.Task[Any], Callable[[], object]]:
            worker = Worker(queue, handlers, concurrency=8, handle_signals=False, shutdown_grace_ms=5_000)
            return asyncio.create_task(worker.run()), worker.stop

        async def add(n: int) -> None:
            # The id is known to the hostile writer before the task is there.
            task = Task(kind="job", id=f"good-{n}", payload={"good": n})
            forged = Task(kind="job", id=f"good-{n + 1}", payload={"good": -1})
            run.others |= {"task_id": forged.id.encode(), "payload": encode(task), "whole_task": encode(forged)}
            await queue.enqueue(task, delay=0.01 if n % 4 == 0 else None)
            if n % 20 == 0:
                await queue.trim()

        def left() -> set[str]:
            # In a lane for a kind or for capabilities, tasks wait for a worker that can run them.
            lanes = [name for key in run.raw.scan_iter(match="jobs.tasks*") if ":" not in (name := key.decode())]
            scheduled = {task_id.decode() for task_id in run.raw.zrange(queue.keys.due, 0, -1)}
            return scheduled | {entry_id for lane in lanes for entry_id in unsettled(run.raw, lane, "jobs")}

        await run.rounds("jobs.tasks", strange_tasks(), add, left, begin)
        for n in run.history.good & set(run.history.handled):
            result = await queue.wait_for_result(f"good-{n}", 5)
            if result is None or result.data != n:
                run.history.raised.append(f"the result of good-{n} is {result}"[:200])
    return run.history


async def read_owned_stream(run: Run) -> History:
    """The owner of a balanced stream."""

    async def add(n: int) -> None:
        run.raw.xadd("session", {"data": f'{{"good": {n}}}'})

    def left() -> set[str]:
        # The last entry is a good one: everything was passed when it is committed.
        [(last, _)] = run.raw.xrevrange("session", count=1)
        return set() if run.raw.hget("{session}:balancer:svc", "position") == last else {last.decode()}

    run.raw.execute_command("XADD", "svc-input", "*", "lbs-input", '{"DataStreamName": "session", "Info": null}')
    await _balance(run, "session", [b'{"n": -1}'], add, left)
    run.history.dead = dead_lettered(run.raw, "session_dlq")
    return run.history


async def read_announcements(run: Run) -> History:
    """A balanced service to which hostile entries announce streams; each good one is a stream with one message."""

    async def add(n: int) -> None:
        run.raw.xadd(f"session-{n}", {"data": f'{{"good": {n}}}'})
        run.raw.xadd("svc-input", {"lbs-input": f'{{"DataStreamName": "session-{n}", "Info": {{}}}}'})

    announced = [b'{"DataStreamName": "strange-%d", "Info": null}' % n for n in range(20_000)]
    await _balance(run, "svc-input", announced, add, lambda: unsettled(run.raw, "svc-input", "svc-group"))
    run.history.dead = dead_lettered(run.raw, "{svc-input}_dlq")
    return run.history


async def _balance(
    run: Run,
    stream: str,
    payloads: list[bytes],
    add: Callable[[int], Awaitable[object]],
    left: Callable[[], set[str]],
) -> None:
    async def follow(owned: OwnedStream) -> None:
        if not owned.name.startswith("session"):
            run.history.given[owned.name] += 1
            return
        async for message in owned:
            run.noted(message.data, message.id)
            await owned.commit(message)
            if owned.name != "session":
                return

    async with StreamClient.from_url(run.url) as client:

        def begin() -> tuple[asyncio.Task[Any], Callable[[], object]]:
            balancer = penstock.StreamBalancer(client, "svc", id="reader", recovery_interval_ms=200)
            running = balancer.run(follow, serializer=JsonSerializer(), handle_signals=False, shutdown_grace_ms=2_000)
            return asyncio.create_task(running), balancer.stop

        await run.rounds(stream, payloads, add, left, begin, field="data" if stream == "session" else "lbs-input")


async def read(reader: str, run: Run) -> list[str]:
    """Run a reader of this name over hostile entries and return what is to be complained about."""
    try:
        await READERS[reader](run)
        check_memory(run.raw, run.history)
    except Exception as error:
        run.history.raised.append(f"{type(error).__name__}: {error}"[:300])
    return run.history.complaints(knows_ids=reader in _KNOW_IDS)


_KNOW_IDS = {"streams", "queue", "balancer"}
READERS: dict[str, Callable[[Run], Awaitable[History]]] = {
    "streams": read_stream,
    "queue": read_queue,
    "tasks": read_tasks,
    "balancer": read_owned_stream,
    "balancer announcements": read_announcements,
}
