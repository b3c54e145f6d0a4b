"""A producer process: `python -m campaign.producer '{"part": "streams", "half": "async", "first": 0, ...}'`.

It publishes numbered messages at a pace and journals each as `confirmed`, or as `unknown` where publishing raised.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import penstock
from campaign.children import end_with_the_parent
from campaign.journal import Journal
from penstock import sync
from penstock.errors import PenstockError, PublishUnknown
from penstock.task import Task
from penstock.tasks import RedisTaskQueue

Job = dict[str, Any]
_is_stopped = False


def bodies(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the messages of this producer at its pace, until all are through or it is told to end."""
    chance = random.Random(job["seed"])
    began, step = time.monotonic(), job["step"]
    for number, n in enumerate(range(job["first"], job["messages"], step)):
        late = time.monotonic() - began - number / job["pace"]
        if late < 0:
            time.sleep(-late)
        if _is_stopped:
            return
        fate = chance.random()
        yield {
            "n": n,
            "do": _fate(fate, job),
            "ms": round(chance.expovariate(1 / job.get("ms", 2)), 1),
            "pad": "x" * chance.randrange(200),
        }


def _fate(fate: float, job: Job) -> str:
    if fate < job.get("poison", 0):
        return "poison"
    if fate < 0.01:
        return "fail"
    return "later" if fate > 1 - job.get("later", 0) else ""


def _options(job: Job) -> dict[str, Any]:
    return {
        "max_len": None,
        "durability": job.get("durability", "fast"),
        "retry_budget_ms": round(1000 * job.get("budget_s", 30.0)),
    }


async def streams_async(job: Job, journal: Journal) -> None:
    async with penstock.StreamClient.from_url(job["url"], **job["client"]) as client:
        producer = penstock.StreamProducer(client, job["stream"], **_options(job))

        async def push(some: list[dict[str, Any]]) -> None:
            answers = await asyncio.gather(*map(producer.push, some), return_exceptions=True)
            for body, answer in zip(some, answers, strict=True):
                journal.note("confirmed" if isinstance(answer, str) else "unknown", body["n"])

        await _in_batches(job, push)


async def _in_batches(job: Job, push: Callable[[list[dict[str, Any]]], Awaitable[None]]) -> None:
    waiting: list[dict[str, Any]] = []
    for body in bodies(job):
        waiting.append(body)
        if len(waiting) >= job.get("batch", 10):
            await push(waiting)
            waiting = []
    if waiting:
        await push(waiting)


def streams_sync(job: Job, journal: Journal) -> None:
    with sync.StreamClient.from_url(job["url"], **job["client"]) as client:
        producer = sync.StreamProducer(client, job["stream"], **_options(job))
        for body in bodies(job):
            _journalled(journal, body, partial(producer.push, body))


def _journalled(journal: Journal, body: dict[str, Any], publish: Callable[[], object]) -> bool:
    try:
        publish()
    except PenstockError as error:
        journal.note("unknown", body["n"])
        return not isinstance(error, PublishUnknown)
    journal.note("confirmed", body["n"])
    return True


def queue_sync(job: Job, journal: Journal) -> None:
    """Publish every third message twice, and one of unknown outcome until it is known: the key keeps it single."""
    with sync.StreamClient.from_url(job["url"], **job["client"]) as client:
        gateway = sync.RedisGateway(redis_client=client, retry_budget_seconds=20, retry_max_delay_seconds=0.5)
        queue = sync.RedisMessageQueue(job["stream"], gateway=gateway)
        for body in bodies(job):
            for _ in range(2 if body["n"] % 3 == 0 else 1):
                while not _journalled(journal, body, partial(queue.publish, body)) and not _is_stopped:
                    time.sleep(0.05)
        queue.close()


async def tasks_async(job: Job, journal: Journal) -> None:
    async with (
        penstock.StreamClient.from_url(job["url"], **job["client"]) as client,
        RedisTaskQueue(client, name=job["stream"], encoding="json") as queue,
    ):

        async def push(some: list[dict[str, Any]]) -> None:
            tasks = [Task(kind="job", id=f"t-{body['n']}", payload=body) for body in some]
            try:
                await queue.enqueue_many(tasks)
            except PenstockError:
                what = "unknown"
            else:
                what = "confirmed"
            for body in some:
                journal.note(what, body["n"])

        await _in_batches(job, push)


async def balancer_async(job: Job, journal: Journal) -> None:
    """Write to the data streams, as the sessions of a balanced service do."""
    async with penstock.StreamClient.from_url(job["url"], **job["client"]) as client:
        owner = penstock.StreamBalancer(client, job["stream"], id=f"adds-{job['first']}")
        producers = {}
        for number in range(job["first"], job["sessions"], job["step"]):
            name = f"{job['stream']}-session-{number}"
            producers[number] = penstock.StreamProducer(client, name, max_len=None)
            await owner.add_stream(name)
        names = list(producers)

        async def push(some: list[dict[str, Any]]) -> None:
            pushes = [producers[names[body["n"] // job["step"] % len(names)]].push(body) for body in some]
            for body, answer in zip(some, await asyncio.gather(*pushes, return_exceptions=True), strict=True):
                journal.note("confirmed" if isinstance(answer, str) else "unknown", body["n"])

        await _in_batches(job, push)


PARTS: dict[str, Callable[[Job, Journal], Any]] = {
    "streams-async": streams_async,
    "streams-sync": streams_sync,
    "queue-sync": queue_sync,
    "tasks-async": tasks_async,
    "balancer-async": balancer_async,
}


def _stop(*_: object) -> None:
    global _is_stopped  # noqa: PLW0603 (a signal handler has no other way in)
    _is_stopped = True


def main() -> None:
    """Do the job that the command line describes."""
    end_with_the_parent()
    signal.signal(signal.SIGTERM, _stop)
    job: Job = json.loads(sys.argv[1])
    journal, run = Journal(job["journal"]), PARTS[f"{job['part']}-{job['half']}"]
    if job["half"] == "async":
        asyncio.run(run(job, journal))
    else:
        run(job, journal)


if __name__ == "__main__":
    main()
