"""A worker process: `python -m campaign.worker '{"part": "streams", "half": "async", ...}'`.

It handles messages as their bodies order, and journals when each handler begins and ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import penstock
from campaign.children import end_with_the_parent
from campaign.journal import Journal
from penstock import ConsumerConfig, JsonSerializer, OwnedStream, StreamMessage, sync
from penstock.results import FSBackend
from penstock.task import Task
from penstock.tasks import Handlers, RedisTaskQueue, Worker

Job = dict[str, Any]
LATER_S = 8.0
"""So long that a worker which dies has more messages waiting for a retry than in hand."""


class Work:
    """What every handler does: `{"n": 7, "do": "fail", "ms": 3}` fails in its first run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def begin(self, body: Any, is_first: bool) -> float:
        """Journal the begin and return how many seconds the work takes."""
        n, do = body["n"], body.get("do", "")
        self._journal.note("begin", n)
        if do == "poison":
            self._journal.note("dying", n)
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "fail" and is_first:
            self._journal.note("fail", n)
            raise ValueError("fails in its first run, as ordered")
        if do == "later" and is_first:
            self._journal.note("fail", n)
            raise penstock.RetryLater(LATER_S)
        return float(body.get("ms", 0)) / 1000

    def end(self, body: Any) -> None:
        self._journal.note("end", body["n"])

    def do(self, body: Any, is_first: bool) -> None:
        time.sleep(self.begin(body, is_first))
        self.end(body)

    async def do_async(self, body: Any, is_first: bool) -> None:
        await asyncio.sleep(self.begin(body, is_first))
        self.end(body)


# --- streams ----------------------------------------------------------------------------------------


def _config(job: Job) -> ConsumerConfig:
    return ConsumerConfig(
        group="workers", min_idle_claim_ms=int(job["lease_s"] * 1000), max_deliveries=job.get("max_deliveries", 20),
        retry_initial_delay_ms=100, retry_max_delay_ms=2_000, block_ms=500, batch_size=20,
        max_stream_size=job.get("keep", 1_000_000), shutdown_grace_ms=3_000,
    )  # fmt: skip


async def streams_async(job: Job, work: Work) -> None:
    async def handle(message: StreamMessage) -> None:
        await work.do_async(message.data, message.attempts == 1)

    async with penstock.StreamClient.from_url(job["url"], **job["client"]) as client:
        await penstock.StreamConsumer(client, job["stream"], _config(job), message_handler=handle).run()


def streams_sync(job: Job, work: Work) -> None:
    def handle(message: StreamMessage) -> None:
        work.do(message.data, message.attempts == 1)

    with sync.StreamClient.from_url(job["url"], **job["client"]) as client:
        sync.StreamConsumer(client, job["stream"], _config(job), message_handler=handle).run()


# --- queue ------------------------------------------------------------------------------------------


def _gateway(job: Job) -> dict[str, Any]:
    return {
        "message_visibility_timeout_seconds": job["lease_s"], "message_wait_interval_seconds": 1,
        "max_delivery_count": job.get("max_deliveries", 20), "dead_letter_queue": f"{job['stream']}::dlq",
        "retry_max_delay_seconds": 0.5,
    }  # fmt: skip


def _queue(job: Job) -> dict[str, Any]:
    return {"heartbeat_interval_seconds": job["lease_s"] / 4, "retry_delay_seconds": 0.1}


async def queue_async(job: Job, work: Work) -> None:
    interrupt = penstock.GracefulInterruptHandler(verbose=False, signals=(signal.SIGTERM,))
    async with penstock.StreamClient.from_url(job["url"], **job["client"]) as client:
        gateway = penstock.RedisGateway(redis_client=client, interrupt=interrupt, **_gateway(job))
        queue = penstock.RedisMessageQueue(job["stream"], gateway=gateway, **_queue(job))
        while not interrupt.is_interrupted():
            processing = queue.process_message()
            try:
                async with processing as message:
                    if message is not None:
                        await work.do_async(json.loads(message), processing.attempts == 1)
            except ValueError:
                continue
        await queue.close()


def queue_sync(job: Job, work: Work) -> None:
    interrupt = sync.GracefulInterruptHandler(verbose=False, signals=(signal.SIGTERM,))
    with sync.StreamClient.from_url(job["url"], **job["client"]) as client:
        gateway = sync.RedisGateway(redis_client=client, interrupt=interrupt, **_gateway(job))
        queue = sync.RedisMessageQueue(job["stream"], gateway=gateway, **_queue(job))
        while not interrupt.is_interrupted():
            processing = queue.process_message()
            try:
                with processing as message:
                    if message is not None:
                        work.do(json.loads(message), processing.attempts == 1)
            except ValueError:
                continue
        queue.close()


# --- tasks, schedules -------------------------------------------------------------------------------


async def tasks_async(job: Job, work: Work) -> None:
    handlers = Handlers()

    @handlers.task("job")
    async def do(task: Task) -> int:
        await work.do_async(task.payload, task.attempts == 1)
        return int(task.payload["n"])

    await _run_tasks(job, handlers, FSBackend(root=job["results"]))


async def cron_async(job: Job, work: Work) -> None:
    handlers = Handlers()

    @handlers.task("tick")
    async def tick(task: Task) -> None:
        await work.do_async({"n": task.id}, is_first=True)

    for number in range(job["schedules"]):
        handlers.schedule("* * * * *", "tick", name=f"s{number}")
    await _run_tasks(job, handlers, None)


async def _run_tasks(job: Job, handlers: Handlers, results: FSBackend | None) -> None:
    client = penstock.StreamClient.from_url(job["url"], **job["client"])
    idle_ms, most = int(job["lease_s"] * 1000), job.get("max_deliveries", 20)
    async with client, RedisTaskQueue(client, name=job["stream"], idle_ms=idle_ms, max_retry=most) as queue:
        await Worker(queue, handlers, results=results, concurrency=16, shutdown_grace_ms=3_000).run()


# --- balancer ---------------------------------------------------------------------------------------


async def balancer_async(job: Job, work: Work) -> None:
    async def follow(owned: OwnedStream) -> None:
        async for message in owned:
            begun = work.begin(message.data, is_first=False)
            await asyncio.sleep(begun)
            work.end(message.data)
            await owned.commit(message)

    async with penstock.StreamClient.from_url(job["url"], **job["client"]) as client:
        patience = penstock.RetryConfig(max_retries=-1, max_retry_delay=1.0)
        balancer = penstock.StreamBalancer(client, job["stream"], id=job["id"], retry_config=patience)
        await balancer.run(follow, serializer=JsonSerializer(), shutdown_grace_ms=3_000)


PARTS: dict[str, Callable[[Job, Work], Any]] = {
    "streams-async": streams_async,
    "streams-sync": streams_sync,
    "queue-async": queue_async,
    "queue-sync": queue_sync,
    "tasks-async": tasks_async,
    "cron-async": cron_async,
    "balancer-async": balancer_async,
}


def main() -> None:
    """Do the job that the command line describes until a signal."""
    end_with_the_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    job: Job = json.loads(sys.argv[1])
    journal = Journal(job["journal"])
    journal.note("started", "worker")
    work = Work(journal)
    run = PARTS[f"{job['part']}-{job['half']}"]
    if job["half"] == "async":
        asyncio.run(run(job, work))
    else:
        run(job, work)


if __name__ == "__main__":
    main()
