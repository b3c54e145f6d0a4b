"""Calls the user's functions: plain ones in threads, so that they do not block the event loop, and callbacks safely."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")
logger = logging.getLogger("penstock")
_running: set[asyncio.Future[None]] = set()  # an event loop holds its tasks weakly


class Threads:
    """Runs plain functions without blocking the event loop, at most `size` at a time.

    Uses daemon threads: the interpreter joins those of a ThreadPoolExecutor when it exits, so that one hung handler
    would keep the process from ending after its grace period.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        weakref.finalize(self, _dismiss, self._threads, self._calls)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run the function in a thread and return what it returns."""
        loop = asyncio.get_running_loop()
        promise: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def call() -> None:
            result, error = None, None
            try:
                result = function(*args)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_keep, promise, (result, error))

        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
            # It references the queue but not its owner, so that it ends when the owner is garbage-collected.
            name = f"penstock-handler-{len(self._threads)}"
            thread = threading.Thread(target=_serve, args=(self._calls, self._idle), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        result, error = await promise
        if error is not None:
            # Not set on the future, which rejects StopIteration: the caller would wait forever.
            raise error
        return cast("T", result)

    def close(self) -> None:
        """Let the threads end; does not wait for a hung one."""
        _dismiss(self._threads, self._calls)
        self._idle = threading.Semaphore(0)


def _serve(calls: SimpleQueue[Callable[[], None] | None], idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # free what it references now, not when the next one arrives
        idle.release()


def _dismiss(threads: list[threading.Thread], calls: SimpleQueue[Callable[[], None] | None]) -> None:
    for _ in threads:
        calls.put(None)
    threads.clear()


def _keep(promise: asyncio.Future[T], result: T) -> None:
    if not promise.done():
        promise.set_result(result)


def call_back(function: Callable[..., Any], what: str, *args: object) -> None:
    """Call a function when something happens; an async one runs as a task of the event loop. Errors are logged."""
    try:
        result = function(*args)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(_finish(result, what))
            _running.add(task)
            task.add_done_callback(_running.discard)
    except Exception:
        logger.exception("%s failed", what)


async def _finish(result: Awaitable[Any], what: str) -> None:
    try:
        await result
    except Exception:
        logger.exception("%s failed", what)
