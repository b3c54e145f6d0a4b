"""The handlers of the worker processes that these tests kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from penstock.task import Task
from penstock.tasks import Handlers, Retry

handlers = Handlers()


@handlers.task("quick")
async def quick(task: Task) -> int:
    return int(task.payload["n"])


@handlers.task("hang")
async def hang(task: Task) -> str:
    """Hangs in its first run only."""
    if task.attempts == 1:
        await asyncio.sleep(3_600)
    return "done"


@handlers.task("block")
async def block(task: Task) -> str:
    """Holds up the event loop for longer than the lease."""
    time.sleep(task.payload["seconds"])  # noqa: ASYNC251
    return f"run {task.attempts}"


@handlers.task("note")
async def note(task: Task) -> None:
    """Writes down that it ran."""
    with Path(task.payload["path"]).open("a") as file:  # noqa: ASYNC230 (a line at the end of a file)
        file.write(f"{task.id}\n")


@handlers.task("block_when_told")
async def block_when_told(task: Task) -> str:
    """Lets others have the event loop until a file is there, then removes the file and holds the event loop up."""
    told = Path(task.payload["path"])
    while not told.exists():  # noqa: ASYNC110, ASYNC240 (another process makes it)
        await asyncio.sleep(0.01)
    told.unlink()  # noqa: ASYNC240
    return await block(task)


@handlers.task("poison")
async def poison(task: Task) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@handlers.task("leave", retry=Retry(initial_delay_ms=0))
async def leave(task: Task) -> None:
    sys.exit(66)


@handlers.task("nap", retry=Retry(initial_delay_ms=0))
async def nap(task: Task) -> float:
    await asyncio.sleep(task.payload["seconds"])
    return float(task.payload["seconds"])
