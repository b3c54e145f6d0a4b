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
from typing import Any, TypeAlias, TypeVar, cast

T = TypeVar("T")
_Calls: TypeAlias = SimpleQueue[Callable[[], None] | None]  # of one thread; None ends it
logger = logging.getLogger("penstock")
_HUNG_PER_THREAD = 10
_running: set[asyncio.Future[None]] = set()  # an event loop holds its tasks weakly


class Threads:
    """Runs plain functions without blocking the event loop, at most `size` at a time.

    A function whose caller is cancelled runs on: its thread no longer counts, so that one that hangs holds up no other,
    unless ten times as many hang as may run.

    Uses daemon threads: the interpreter joins those of a ThreadPoolExecutor when it exits, so that one hung handler
    would keep the process from ending after its grace period.
    """

    def __init__(self, size: int) -> None:
        self._size, self._max_hung = size, _HUNG_PER_THREAD * size
        self._idle: list[_Calls] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        weakref.finalize(self, _end_threads, self._idle)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run the function in a thread and return what it returns."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._places, self._hung = loop, asyncio.Semaphore(self._size), 0
        promise: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def call() -> None:
            result, error = None, None
            try:
                if not promise.cancelled():
                    result = function(*args)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._returned, promise, (result, error))

        await self._places.acquire()
        try:
            calls = self._idle.pop() if self._idle else _new_thread()
        except BaseException:
            self._places.release()
            raise
        calls.put(call)
        try:
            result, error = await promise
        except BaseException:
            calls.put(None)  # ends the thread when the function returns
            self._hung += 1
            if self._hung <= self._max_hung:
                self._places.release()
            raise
        self._idle.append(calls)
        self._places.release()
        if error is not None:
            # Not set on the future, which rejects StopIteration: the caller would wait forever.
            raise error
        return cast("T", result)

    def _returned(self, promise: asyncio.Future[T], result: T) -> None:
        if not promise.done():
            promise.set_result(result)
            return
        self._hung -= 1
        if self._hung >= self._max_hung:
            self._places.release()

    def close(self) -> None:
        """Let idle threads end; does not wait for a hung one."""
        _end_threads(self._idle)


def _new_thread() -> _Calls:
    # It references its calls but not the owner, so that it ends when the owner is garbage-collected.
    calls: _Calls = SimpleQueue()
    threading.Thread(target=_serve, args=(calls,), name="penstock-handler", daemon=True).start()
    return calls


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # free what it references now, not when the next one arrives


def _end_threads(idle: list[_Calls]) -> None:
    while idle:
        idle.pop().put(None)


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
