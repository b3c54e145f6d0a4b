"""The implementation for threads: the twin of aio.py, name by name."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar, cast

from penstock.errors import was_raised

A = TypeVar("A")
T = TypeVar("T")

Lock = threading.Lock
IS_ASYNC = False
_MAIN_THREAD_WAIT_S = 1.0  # it is not woken by a signal that the system delivers to another thread


class Cancelled(BaseException):
    """Never raised, because threads cannot be cancelled; the counterpart of asyncio.CancelledError."""


def comes_from_outside(error: BaseException) -> bool:
    """Return whether the error is a close or a signal, rather than raised by the running code."""
    return isinstance(error, Cancelled | KeyboardInterrupt | GeneratorExit) and not was_raised(error)


def pause(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


class _Process:
    """The identity of this process, which a forked one does not share."""

    identity = object()

    @classmethod
    def forked(cls) -> None:
        """Get a new identity; called by the interpreter in a forked process."""
        cls.identity = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.forked)


def connection_scope() -> object:
    """Return what connections belong to: the process, since a forked one must not use its sockets."""
    return _Process.identity


def runner() -> object:
    """Return the current thread."""
    return threading.current_thread()


def call_in_loop(scope: object, function: Callable[..., None], *args: object) -> None:
    """Run a function here, unless this is a forked process."""
    if is_alive(scope):
        function(*args)


def is_alive(scope: object) -> bool:
    """Return whether the connections of the scope can still be used."""
    return scope is _Process.identity


def at_end(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step; the sockets of a process are closed when it ends."""
    return step


class Flag:
    """A flag that can be waited for.

    Without a lock: a signal handler may interrupt the main thread anywhere, and if that held the lock of
    threading.Event, as it does at the start and end of wait(), set() would deadlock.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[threading.Lock] = deque()  # the thread that removes one releases it

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True
        with suppress(IndexError):  # all are awake, or another thread wakes them
            while True:
                self._waiting.popleft().release()

    def set_from_outside(self) -> None:
        """Set the flag from another thread or from a signal handler."""
        self.set()

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is set; return False after the timeout."""
        if self._is_set:
            return True
        sleep = threading.Lock()
        sleep.acquire()
        self._waiting.append(sleep)
        until_s = math.inf if timeout_s is None else time.monotonic() + max(0.0, timeout_s)
        is_main = threading.current_thread() is threading.main_thread()
        try:
            # Check again: a thread that set it a moment ago did not see us waiting.
            while not self.is_set():
                left_s = until_s - time.monotonic()
                if is_main:
                    left_s = min(left_s, _MAIN_THREAD_WAIT_S)
                if sleep.acquire(timeout=-1 if left_s == math.inf else max(0.0, left_s)):
                    break
                if time.monotonic() >= until_s:
                    return self.is_set()
            return True
        finally:
            with suppress(ValueError):  # removed by the thread that woke us
                self._waiting.remove(sleep)


class WaitQueue:
    """Waiters for a condition, of which call() wakes a given number."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def call(self, count: int = 1) -> None:
        """Wake `count` waiters to check their condition again."""
        with self._condition:
            self._condition.notify(count)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        with self._condition:
            self._condition.wait_for(condition)


class Promise(Generic[T]):
    """A result that is set later; with threads, before anyone asks for it: see Combiner."""

    __slots__ = ("_error", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._error: BaseException | None = None
        self._result: T | None = None

    def done(self) -> bool:
        """Return whether the result is set."""
        return self._is_done

    def set_result(self, result: T) -> None:
        """Set the result."""
        self._result, self._is_done = result, True

    def set_exception(self, error: BaseException) -> None:
        """Set an error instead."""
        self._error, self._is_done = error, True

    def result(self) -> T:
        """Return the result."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


def new_promise() -> Promise[Any]:
    """Return a promise for a result that is set later."""
    return Promise()


class Activity:
    """One activity of a group."""

    def interrupt(self) -> None:
        """Do nothing: a thread cannot be interrupted; the message it works on is flagged instead."""

    @staticmethod
    def resume() -> None:
        """Do nothing: see interrupt."""

    @staticmethod
    def current() -> Activity | None:
        """Return the running activity."""
        return Activity()


class TaskGroup:
    """Concurrent activities, joined by the owner of the group."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._threads: set[threading.Thread] = set()
        self._changing = threading.Lock()
        self._failure: BaseException | None = None
        self._on_failure = on_failure

    def start(self, activity: Callable[..., None], *args: object) -> Activity:
        """Start an activity."""
        # A daemon thread, so that a hung handler cannot keep the process from ending after the grace period.
        thread = threading.Thread(target=self._run, args=(activity, args), daemon=True, name="penstock")
        with self._changing:  # a concurrent join() sees it started, or not at all
            thread.start()
            self._threads.add(thread)
        return Activity()

    def _run(self, activity: Callable[..., None], args: tuple[object, ...]) -> None:
        try:
            activity(*args)
        except BaseException as error:
            self._failure = self._failure or error
            self._on_failure()
        finally:
            with self._changing:
                self._threads.discard(threading.current_thread())

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until all have ended; return False after the timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._running():
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._running())

    def _running(self) -> list[threading.Thread]:
        with self._changing:
            return list(self._threads)

    def cancel(self) -> None:
        """Do nothing: threads keep running, but without their leases they can settle nothing."""

    def raise_failure(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None:
            raise self._failure


class Threads:
    """Runs plain functions in the calling thread."""

    def __init__(self, size: int) -> None:
        pass

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Run the function and return what it returns."""
        return function(*args)

    def close(self) -> None:
        """Do nothing."""


SendAtOnce: TypeAlias = Callable[[list[T], Callable[[], None]], bool]


def _nothing() -> None:
    pass


class Combiner(Generic[T]):
    """Collects items from many callers and sends them in batches, one batch at a time.

    Items that other threads put in while a batch is under way are sent together in the next one, by the first of these
    threads. There is no background thread, and no switch of threads for a single caller. `send_at_once`, if set, may
    send a batch in a shorter way; if it declines, `send` does.
    """

    def __init__(self, send: Callable[[list[T]], None], linger_s: float, max_waiting: int) -> None:
        self._send, self._linger_s, self._max_waiting = send, linger_s, max_waiting
        self.send_at_once: SendAtOnce[T] | None = None
        self._waiting: deque[T] = deque()
        self._turn = threading.Lock()

    def is_full(self) -> bool:
        """Return False: the number of threads bounds what can wait."""
        return False

    def wait_for_room(self) -> None:
        """Do nothing: see is_full."""

    def put(self, item: T) -> None:
        """Add an item, and return once it was sent."""
        waiting = self._waiting
        waiting.append(item)
        with self._turn:
            if item not in waiting:
                return  # the previous thread sent it
            if self._linger_s:
                time.sleep(self._linger_s)
            batch = [waiting.popleft()]
            while waiting:
                batch.append(waiting.popleft())
            if self.send_at_once is None or not self.send_at_once(batch, _nothing):
                self._send(batch)

    def flush(self) -> None:
        """Wait until nothing is under way."""
        with self._turn:
            pass


def shielded(_limit_s: float, step: Callable[..., None], *args: object) -> None:
    """Run the step; threads are never cancelled."""
    step(*args)


def wait_out(_promise: Promise[Any]) -> BaseException | None:
    """Do nothing: the result is set, and threads are never cancelled."""
    return None


def next_tick() -> None:
    """Do nothing; other threads run anyway."""


def side_by_side(limit: int, function: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """Call the function with every item, up to `limit` at a time, and return what it returned, in order.

    Raises the first error after all calls that had started have ended.
    """
    waiting = list(items)
    if len(waiting) <= 1:
        return [function(item) for item in waiting]
    with ThreadPoolExecutor(min(limit, len(waiting)), thread_name_prefix="penstock-results") as threads:
        futures = [threads.submit(function, item) for item in waiting]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
