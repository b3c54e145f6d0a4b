"""A process that handles the messages of a queue, and prints what it does, one JSON object a line.

    python -m tests.faults.queue_worker '{"url": ..., "half": "async" or "sync", "lease_s": 0.6, "gate": "/path"}'

A message that begins with "hold" is held until the file of its gate exists. "exit", "leave" and "burst" end the process:
by os._exit(), by sys.exit() and by an error that is no Exception.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

import penstock
from penstock import sync
from tests.faults.worker import end_with_the_parent, on_event, say

_POLL_S = 0.01
CODE = 66  # of a process that was ended by its message


class Burst(BaseException):
    """No Exception, so that nothing between the handler and the end of the process catches it."""


def options(job: dict[str, Any]) -> dict[str, Any]:
    beat = {"heartbeat_interval_seconds": job["beat_s"]} if job.get("beat_s") else {}
    lease = {"visibility_timeout_seconds": job["lease_s"], "max_delivery_count": job.get("most", 10)}
    return {**lease, **beat, "retry_delay_seconds": 0.05, "enable_completed_queue": True, "on_event": on_event}


def began(processing: Any, message: str) -> None:
    say("began", message=message, number=processing.delivery_count, attempts=processing.attempts)
    if message == "exit":
        os._exit(CODE)
    elif message == "leave":
        sys.exit(CODE)
    elif message == "burst":
        raise Burst


def run_sync(job: dict[str, Any]) -> None:
    queue = sync.RedisMessageQueue(
        "orders", client=redis.Redis.from_url(job["url"], decode_responses=True), **options(job)
    )
    say("ready")
    while True:
        processing = queue.process_message()
        with processing as message:
            if message is None:
                continue
            began(processing, str(message))
            while str(message).startswith("hold") and not Path(job["gate"]).exists():
                time.sleep(_POLL_S)
        say("ended", message=message, lease_lost=processing.lease_lost)


async def run_async(job: dict[str, Any]) -> None:
    client = redis.asyncio.Redis.from_url(job["url"], decode_responses=True)
    queue = penstock.RedisMessageQueue("orders", client=client, **options(job))
    say("ready")
    while True:
        processing = queue.process_message()
        async with processing as message:
            if message is None:
                continue
            began(processing, str(message))
            while str(message).startswith("hold") and not Path(job["gate"]).exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(_POLL_S)
        say("ended", message=message, lease_lost=processing.lease_lost)


def main() -> None:
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    job = json.loads(sys.argv[1])
    if job["half"] == "sync":
        run_sync(job)
    else:
        asyncio.run(run_async(job))


if __name__ == "__main__":
    main()
