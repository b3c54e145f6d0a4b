"""A program that processes messages of a queue as fast as they come, and ends without closing anything.

    python -m tests.faults.brisk_program URL async|sync|daemon COUNT LEASE_S

It counts each message that it handles in the hash `handled`. `daemon` processes in a thread for which nobody waits.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import redis
import redis.asyncio

import penstock
from penstock import sync
from tests.faults.worker import end_with_the_parent

QUEUE, HANDLED = "orders", "handled"


def run_sync(url: str, count: int, lease_s: float, enough: threading.Event) -> None:
    client = redis.Redis.from_url(url, decode_responses=True)
    queue = sync.RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=lease_s)
    handled = 0
    while handled < count:
        with queue.process_message() as message:
            if message is not None:
                client.hincrby(HANDLED, str(message))
                handled += 1
        if handled > 100:
            enough.set()


async def run_async(url: str, count: int, lease_s: float) -> None:
    async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
        queue = penstock.RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=lease_s)
        handled = 0
        while handled < count:
            async with queue.process_message() as message:
                if message is not None:
                    await client.hincrby(HANDLED, str(message), 1)  # type: ignore[misc]  # of both halves at once
                    handled += 1


def main() -> None:
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    url, how, count, lease_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    enough = threading.Event()
    if how == "sync":
        run_sync(url, count, lease_s, enough)
    elif how == "async":
        asyncio.run(run_async(url, count, lease_s))
    else:
        threading.Thread(target=run_sync, args=(url, count, lease_s, enough), daemon=True).start()
        enough.wait()


if __name__ == "__main__":
    main()
