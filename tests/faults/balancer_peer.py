"""A consumer of a balanced service as a process: follows its notices and prints them, one JSON object a line.

python -m tests.faults.balancer_peer '{"url": ..., "name": ..., "half": "async" or "sync", "mode": "notices" or "run"}'
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock import LBSInfo, OwnedStream, StreamAdded, StreamExpired
from penstock.balancer.orphans import Listener
from penstock.errors import AlreadyClaimed, OwnershipLost

SERVICE = "svc"


def say(did: str, **facts: object) -> None:
    """Prints a line; the clock is that of the machine, the same for all processes."""
    line = json.dumps({"did": did, "at": time.monotonic(), "pid": os.getpid(), **facts}, default=str) + "\n"
    os.write(1, line.encode())


def told(notice: Any) -> None:
    name = type(notice).__name__
    say(name, stream=notice.payload.data_stream_name, token=getattr(notice, "token", 0))


async def follow(job: dict[str, Any]) -> None:
    async with penstock.StreamClient.from_url(job["url"]) as client:
        balancer = penstock.StreamBalancer(client, SERVICE, id=job["name"], **job.get("settings", {}))

        async def claim(payload: LBSInfo) -> None:
            with suppress(AlreadyClaimed):
                ownership = await balancer.claim(payload)
                say("claimed", stream=payload.data_stream_name, token=ownership.token)

        # Claims side by side travel together, as a program does that has many streams.
        async with balancer as notices, asyncio.TaskGroup() as claims:
            say("ready")
            async for notice in notices:
                told(notice)
                if isinstance(notice, StreamExpired):
                    claims.create_task(claim(notice.payload))
                elif isinstance(notice, StreamAdded) and job.get("cpu") and len(balancer.owned) >= 10_000:
                    job["cpu"] = False  # once
                    threading.Thread(target=measure, daemon=True).start()


def follow_sync(job: dict[str, Any]) -> None:
    from penstock import sync  # here alone: the memory of a process that uses one half is measured

    with sync.StreamClient.from_url(job["url"]) as client:
        balancer = sync.StreamBalancer(client, SERVICE, id=job["name"], **job.get("settings", {}))
        with balancer as notices:
            say("ready")
            for notice in notices:
                told(notice)
                if isinstance(notice, StreamExpired):
                    with suppress(AlreadyClaimed):
                        ownership = balancer.claim(notice.payload)
                        say("claimed", stream=notice.payload.data_stream_name, token=ownership.token)


def measure() -> None:
    """Says what the process costs over ten seconds."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    time.sleep(10)  # a share is one of some time
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say("cost", core=spent / (time.monotonic() - began), peak_mb=peak_mb())


def peak_mb() -> float:
    """Returns the most memory that the process has had; not ru_maxrss, which begins with that of its parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


async def run(job: dict[str, Any]) -> None:
    async def handle(stream: OwnedStream) -> None:
        say("begin", stream=stream.name, position=stream.position, token=stream.token)
        try:
            async for message in stream:
                say("read", stream=stream.name, id=message.id)
                await stream.commit(message)
                say("committed", stream=stream.name, id=message.id)
        except OwnershipLost as error:
            say("refused", stream=stream.name, error=str(error))
            raise
        finally:
            say("end", stream=stream.name, is_lost=stream.is_lost)

    async with penstock.StreamClient.from_url(job["url"]) as client:
        balancer = penstock.StreamBalancer(client, SERVICE, id=job["name"], **job.get("settings", {}))
        await balancer.run(handle)


def run_sync(job: dict[str, Any]) -> None:
    from penstock import sync

    def handle(stream: sync.OwnedStream) -> None:
        say("begin", stream=stream.name, position=stream.position, token=stream.token)
        for message in stream:
            stream.commit(message)

    with sync.StreamClient.from_url(job["url"]) as client:
        sync.StreamBalancer(client, SERVICE, id=job["name"], **job.get("settings", {})).run(handle)


def main() -> None:
    job = json.loads(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if job.get("deaf"):
        Listener.open = never  # type: ignore[method-assign]
    runs, is_sync = job.get("mode") == "run", job.get("half") == "sync"
    if is_sync:
        (run_sync if runs else follow_sync)(job)
    else:
        asyncio.run((run if runs else follow)(job))


async def never(listener: Listener, host: object) -> None:
    """Stands for a subscription to a server that sends no events."""


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
