"""arq: results kept as it keeps them by default; polling tuned to 10 ms, which is to its advantage."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.tasks.peers.setting import COUNT, PORT, ROLE, payload

SETTINGS = RedisSettings(host="127.0.0.1", port=PORT)


async def noop(_context: dict[str, Any], message: dict[str, Any]) -> int:
    return 1


async def fill() -> None:
    pool = await create_pool(SETTINGS)
    for start in range(0, COUNT, 50):
        numbers = range(start, min(start + 50, COUNT))
        await asyncio.gather(*(pool.enqueue_job("noop", payload(number)) for number in numbers))
    await pool.aclose()


if __name__ == "__main__":
    if ROLE == "fill":
        asyncio.run(fill())
    else:
        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker(functions=[noop], redis_settings=SETTINGS, log_results=False, poll_delay=0.01, max_jobs=100).run()
