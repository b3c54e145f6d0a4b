"""SAQ: results kept as it keeps them by default."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Queue, Worker

from bench.tasks.peers.setting import COUNT, NAME, ROLE, URL, payload


async def noop(_context: dict[str, Any], *, message: dict[str, Any]) -> int:
    return 1


async def fill() -> None:
    queue = Queue.from_url(URL, name=NAME)
    await queue.connect()
    for start in range(0, COUNT, 50):
        numbers = range(start, min(start + 50, COUNT))
        await asyncio.gather(*(queue.enqueue("noop", message=payload(number), ttl=3_600) for number in numbers))
    await queue.disconnect()


async def work() -> None:
    await Worker(Queue.from_url(URL, name=NAME), functions=[("noop", noop)]).start()


if __name__ == "__main__":
    asyncio.run(fill() if ROLE == "fill" else work())
