"""A worker process: `python -m tests.task_faults.process URL key=value ...` runs a Worker until it is ended."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from penstock.tasks import RedisTaskQueue, Worker
from tests.task_faults.handlers import handlers


async def work(url: str, queue_options: dict[str, Any], worker_options: dict[str, Any]) -> None:
    async with RedisTaskQueue(url, **queue_options) as queue:
        worker = Worker(queue, handlers, **worker_options)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])))
