"""Penstock: enqueue_many, one worker process with its defaults."""

from __future__ import annotations

import asyncio

from bench.tasks.peers.setting import COUNT, NAME, ROLE, URL, payload
from penstock.tasks import Handlers, RedisTaskQueue, Task, Worker

handlers = Handlers()


@handlers.task("noop")
async def noop(task: Task) -> int:
    return 1


async def fill() -> None:
    async with RedisTaskQueue(URL, NAME) as queue:
        for start in range(0, COUNT, 10_000):
            numbers = range(start, min(start + 10_000, COUNT))
            await queue.enqueue_many([Task(kind="noop", payload=payload(number)) for number in numbers])


async def work() -> None:
    async with RedisTaskQueue(URL, NAME) as queue:
        await Worker(queue, handlers).run()


if __name__ == "__main__":
    asyncio.run(fill() if ROLE == "fill" else work())
