"""The asyncio implementation. The generated sync API uses the twin, threads.py."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.errors import was_raised
from penstock.runtime.user_functions import Threads as Threads  # noqa: PLC0414  the twin has it too

A = TypeVar("A")
T = TypeVar("T")

logger = logging.getLogger("penstock")
Cancelled = asyncio.CancelledError
IS_ASYNC = True
_CANCEL_S = 5.0  # how long cancelled activities may take to end


def comes_from_outside(error: BaseException) -> bool:
    """Return whether the error is a cancellation, a close or a signal, rather than raised by the running code."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # the loop is closed
            task = None
        return task is None or task.cancelling() > 0 or error.__traceback__ is None
    return isinstance(error, KeyboardInterrupt | GeneratorExit) and not was_raised(error)


async def pause(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


def connection_scope() -> object:
    """Return what connections belong to: the running event loop."""
    return asyncio.get_running_loop()


def runner() -> object:
    """Return the current task."""
    return asyncio.current_task()


def call_in_loop(scope: object, function: Callable[..., None], *args: object) -> None:
    """Run a function in the event loop of the connections, from any thread."""
    if isinstance(scope, asyncio.AbstractEventLoop):
        with suppress(RuntimeError):  # it is closed, and so are they
            scope.call_soon_threadsafe(function, *args)


def is_alive(scope: object) -> bool:
    """Return whether the connections of the scope can still be used."""
    return isinstance(scope, asyncio.AbstractEventLoop) and not scope.is_closed()


async def at_end(step: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Run the step when asyncio.run() shuts the event loop down, or when the returned function is called."""

    # asyncio has no other hook: on shutdown, it closes the async generators that are still suspended.
    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await step()

    waiting = wait()
    await anext(waiting)
    return waiting.aclose


class Flag:
    """A flag that can be awaited."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set_outside = False

    def set(self) -> None:
        """Set the flag."""
        self._event.set()

    def set_from_outside(self) -> None:
        """Set the flag from another thread or from a signal handler, which may run while the loop sleeps."""
        # Before reading self._loop: a task that starts to wait at this moment either sees this, or is woken below.
        self._is_set_outside = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set_outside = False
        self._event.clear()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set_outside or self._event.is_set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is set; return False after the timeout."""
        self._move_to(asyncio.get_running_loop())
        if timeout_s is None:
            return await self._event.wait()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._event.wait()
        except TimeoutError:
            return self.is_set()

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._loop is not loop and self._loop.is_closed():
            was_set, self._event = self._event.is_set(), asyncio.Event()  # the old one belongs to the previous loop
            if was_set:
                self._event.set()
        self._loop = loop
        if self._is_set_outside:
            self._event.set()


class Lock:
    """A lock that may be used in several event loops, one after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        """Return whether it is held."""
        return self._lock.locked()


class WaitQueue:
    """Waiters for a condition, of which call() wakes a given number."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def call(self, count: int = 1) -> None:
        """Wake `count` waiters to check their condition again."""
        while count > 0 and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self.call()  # woken and cancelled at once: pass the wake-up on
                raise


Promise: TypeAlias = asyncio.Future[T]


def new_promise() -> Promise[Any]:
    """Return a promise for a result that is set later."""
    return asyncio.get_running_loop().create_future()


class Activity:
    """One activity of a group."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def interrupt(self) -> None:
        """Cancel what the activity is awaiting."""
        self._task.cancel()

    @staticmethod
    def resume() -> None:
        """Undo, from inside the activity, a cancellation that was meant for one step only."""
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()

    @staticmethod
    def current() -> Activity | None:
        """Return the running activity."""
        task = asyncio.current_task()
        return Activity(task) if task is not None else None


class TaskGroup:
    """Concurrent activities, joined by the owner of the group."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._on_failure = on_failure

    def start(self, activity: Callable[..., Coroutine[Any, Any, None]], *args: object) -> Activity:
        """Start an activity."""
        task = asyncio.get_running_loop().create_task(activity(*args))
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return Activity(task)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._on_failure()

    async def join(self, timeout_s: float | None = None) -> bool:
        """Wait until all have ended; return False after the timeout."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return not self._tasks

    async def cancel(self) -> None:
        """Cancel running activities and wait for them, but not for long: one may ignore its cancellation."""
        for task in set(self._tasks):
            task.cancel()
        if not await self.join(_CANCEL_S):
            logger.warning("%d activities still running %.0f s after they were cancelled", len(self._tasks), _CANCEL_S)

    def raise_failure(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None:
            raise self._failure


_HALVED_FROM = 16
SendAtOnce: TypeAlias = Callable[[list[T], Callable[[], None]], bool]


class Combiner(Generic[T]):
    """Collects items from many callers and sends them in batches, one batch at a time.

    Items that are put in during one turn of the event loop, or while a batch is under way, are sent together; only a
    single caller is served immediately. Of many items, half are sent while the callers of the other half prepare, so
    that neither this process nor the server waits for the other. `send_at_once`, if set, may send a batch by itself and
    call back when it is done; if it declines, a task runs `send`.
    """

    def __init__(self, send: Callable[[list[T]], Awaitable[None]], linger_s: float, max_waiting: int) -> None:
        self._send, self._linger_s, self._max_waiting = send, linger_s, max_waiting
        self.send_at_once: SendAtOnce[T] | None = None
        self._waiting: list[T] = []
        self._room = WaitQueue()
        self._is_busy = False
        self._size = 0  # of the last batch
        self._caller = 0  # the task that put the last item in
        self._task: asyncio.Task[None] | None = None
        self._idle = Flag()
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_full(self) -> bool:
        """Return whether the next caller must wait for room."""
        return len(self._waiting) >= self._max_waiting

    async def wait_for_room(self) -> None:
        """Wait until there is room."""
        await self._room.wait_until(lambda: not self.is_full())

    def put(self, item: T) -> None:
        """Add an item, to be sent in the next turn of the event loop or with the next batch."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # The previous loop has ended, and its batches will never be answered.
            self._loop, self._waiting, self._is_busy = loop, [], False
        self._waiting.append(item)
        caller, self._caller = self._caller, id(asyncio.current_task(loop))
        if not self._is_busy:
            self._is_busy = True
            if self._linger_s:
                loop.call_later(self._linger_s, self._send_batch)
            elif self._size == 1 and caller == self._caller:
                self._send_batch()  # like the last item: alone, and from the same task
            else:
                loop.call_soon(self._send_batch)

    def _next(self) -> None:
        # The previous batch is done.
        if not self._waiting:
            self._is_busy = False
            self._idle.set()
        elif self._size == 1 and self._loop is not None:
            self._size = 0
            self._loop.call_soon(self._next)  # two or three callers: those just served may add an item
        else:
            self._send_batch(is_first=False)

    def _send_batch(self, *, is_first: bool = True) -> None:
        count = len(self._waiting)
        if is_first and count >= _HALVED_FROM and not self._linger_s:
            count //= 2
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
        else:
            batch, self._waiting = self._waiting, []
        self._size = count
        self._room.call(count)
        if self.send_at_once is None or not self.send_at_once(batch, self._next):
            self.run_in_task(self._send(batch))

    def run_in_task(self, step: Awaitable[None]) -> None:
        """Run the rest of the current batch in a task."""
        self._task = asyncio.ensure_future(step)
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # the callers already have the error
        self._next()

    async def flush(self) -> None:
        """Wait until all items are sent and answered."""
        while self._is_busy:
            self._idle.clear()
            await self._idle.wait()


async def shielded(limit_s: float, step: Callable[..., Awaitable[None]], *args: object) -> None:
    """Finish the step within the limit even if the caller is cancelled; raise the cancellation afterwards.

    A step that is itself cancelled starts once more: asyncio.run() cancels every task when its main one has ended.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    cancelled: asyncio.CancelledError | None = None
    may_begin_again = True
    while True:
        task = asyncio.ensure_future(step(*args))
        limit = loop.call_at(deadline, task.cancel)
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        limit.cancel()
        if not task.cancelled() or not may_begin_again or loop.time() >= deadline:
            break
        may_begin_again = False
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()


async def wait_out(promise: Promise[Any]) -> BaseException | None:
    """Wait for a promise even if the caller is cancelled; return the cancellation."""
    cancelled: BaseException | None = None
    while not promise.done():
        try:
            await asyncio.wait([promise])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def next_tick() -> None:
    """Let all other ready tasks run once."""
    await asyncio.sleep(0)


async def side_by_side(limit: int, function: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Call the function with every item, up to `limit` at a time, and return what it returned, in order.

    Raises the first error after all calls that had started have ended.
    """
    slots, failures = asyncio.Semaphore(limit), list[BaseException]()

    async def call(item: A) -> T | None:
        async with slots:
            if failures:
                return None
            try:
                return await function(item)
            except BaseException as error:
                failures.append(error)
                raise

    results = await asyncio.gather(*map(call, items), return_exceptions=True)
    if failures:
        raise failures[0]
    return results  # type: ignore[return-value]
