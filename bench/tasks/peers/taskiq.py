"""taskiq: stream broker and result back-end of taskiq-redis, its own command with one process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bench.tasks.peers.setting import COUNT, ROLE, payload


async def fill() -> None:
    from bench.tasks.peers.taskiq_app import broker, noop

    await broker.startup()
    for start in range(0, COUNT, 50):
        await asyncio.gather(*(noop.kiq(payload(number)) for number in range(start, min(start + 50, COUNT))))
    await broker.shutdown()


if __name__ == "__main__":
    if ROLE == "fill":
        asyncio.run(fill())
    else:
        program = Path(sys.executable).with_name("taskiq")
        options = ["--workers", "1", "--log-level", "WARNING", "--no-configure-logging"]
        os.execv(program, ["taskiq", "worker", "bench.tasks.peers.taskiq_app:broker", *options])
