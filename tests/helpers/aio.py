"""What tests do side by side, asyncio half. The sync tests are generated against the twin, threads.py."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

DEADLINE_S = 60.0
_POLL_S = 0.005

Event = asyncio.Event
Task = asyncio.Task


def start(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any) -> Task[Any]:
    """Starts a call beside the test; `join` gives its result."""
    return asyncio.get_running_loop().create_task(function(*args, **kwargs))


async def join(task: Task[Any], timeout_s: float = DEADLINE_S) -> Any:
    """Waits for a started call and returns what it returns, or raises what it raises."""
    async with asyncio.timeout(timeout_s):
        return await task


def is_done(task: Task[Any]) -> bool:
    """Tells whether a started call has ended."""
    return task.done()


async def outcomes(tasks: list[Task[Any]]) -> list[Any]:
    """Waits for started calls and returns what each returned or raised."""
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for(event: Event) -> None:
    """Waits until the event is set."""
    async with asyncio.timeout(DEADLINE_S):
        await event.wait()


async def next_turn() -> None:
    """Gives every other task that is ready one turn of the event loop."""
    await asyncio.sleep(0)


async def pause(seconds: float) -> None:
    """Lets time pass: for what a handler does, never to wait for something."""
    await asyncio.sleep(seconds)


async def eventually(condition: Callable[[], Any | Awaitable[Any]], timeout_s: float = DEADLINE_S) -> Any:
    """Waits until the condition holds and returns what it gave."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come true in {timeout_s} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(_POLL_S)


async def throughout(seconds: float, condition: Callable[[], Any]) -> None:
    """Looks at the condition for so long and fails as soon as it does not hold."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"it ceased to be true: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(_POLL_S)
