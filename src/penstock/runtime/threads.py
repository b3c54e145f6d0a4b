"""The threads half: the twin of aio.py, name by name."""

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
_NAP_S = 1.0  # of the main thread: it is not woken by a signal that the system has given to another thread


class Cancelled(BaseException):
    """Never raised: threads cannot be cancelled. It stands where asyncio raises CancelledError."""


def comes_from_outside(error: BaseException) -> bool:
    """Tell whether the running code was closed or struck by a signal; else it raised the error itself."""
    return isinstance(error, Cancelled | KeyboardInterrupt | GeneratorExit) and not was_raised(error)


def pause(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


class _Process:
    """This process, as something that another one does not have."""

    identity = object()

    @classmethod
    def forked(cls) -> None:
        """Be another process from now on; called by the interpreter."""
        cls.identity = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.forked)


def connection_scope() -> object:
    """Return what connections are bound to: sockets belong to the process, and must not be used by a forked one."""
    return _Process.identity


def runner() -> object:
    """Return who is running: the current thread."""
    return threading.current_thread()


def call_in_loop(scope: object, function: Callable[..., None], *args: object) -> None:
    """Run a function where the connections are: here, unless this is a forked process."""
    if is_alive(scope):
        function(*args)


def is_alive(scope: object) -> bool:
    """Tell whether connections bound to the scope can still be used."""
    return scope is _Process.identity


def at_end(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step: sockets belong to the process, and end with it."""
    return step


class Flag:
    """A flag that can be waited for.

    Without a lock: a signal handler interrupts the main thread anywhere, and if that held the lock of threading.Event,
    as it does on its way in and out of wait(), set() would wait for it for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[threading.Lock] = deque()  # each is released by whoever takes it out

    def set(self) -> None:
        """Raise the flag."""
        self._is_set = True
        with suppress(IndexError):  # all are awake, or another thread wakes them
            while True:
                self._waiting.popleft().release()

    def set_from_outside(self) -> None:
        """Raise the flag from another thread or from a signal handler."""
        self.set()

    def clear(self) -> None:
        """Lower the flag."""
        self._is_set = False

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is raised; return False when the time is over first."""
        if self._is_set:
            return True
        sleep = threading.Lock()
        sleep.acquire()
        self._waiting.append(sleep)
        until_s = math.inf if timeout_s is None else time.monotonic() + max(0.0, timeout_s)
        is_main = threading.current_thread() is threading.main_thread()
        try:
            # Looked at again: whoever raised it a moment ago did not see us waiting.
            while not self.is_set():
                left_s = until_s - time.monotonic()
                if is_main:
                    left_s = min(left_s, _NAP_S)
                if sleep.acquire(timeout=-1 if left_s == math.inf else max(0.0, left_s)):
                    break
                if time.monotonic() >= until_s:
                    return self.is_set()
            return True
        finally:
            with suppress(ValueError):  # taken out by whoever woke us
                self._waiting.remove(sleep)


class WaitQueue:
    """Lets those pass who wait for a condition, as many as are called."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def call(self, count: int = 1) -> None:
        """Wake so many of those who wait, to look at their condition again."""
        with self._condition:
            self._condition.notify(count)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        with self._condition:
            self._condition.wait_for(condition)


class Promise(Generic[T]):
    """A result that somebody else gives. In this half it is there before anybody asks: see Combiner."""

    __slots__ = ("_error", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._error: BaseException | None = None
        self._result: T | None = None

    def done(self) -> bool:
        """Tell whether the result is there."""
        return self._is_done

    def set_result(self, result: T) -> None:
        """Give the result."""
        self._result, self._is_done = result, True

    def set_exception(self, error: BaseException) -> None:
        """Give an error instead."""
        self._error, self._is_done = error, True

    def result(self) -> T:
        """Return the result."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


def new_promise() -> Promise[Any]:
    """Return a result that somebody else will give."""
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
    """Activities side by side, owned by whoever made the group and joined by it."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._threads: set[threading.Thread] = set()
        self._changing = threading.Lock()
        self._failure: BaseException | None = None
        self._on_failure = on_failure

    def start(self, activity: Callable[..., None], *args: object) -> Activity:
        """Start an activity."""
        # Daemon threads: a hung handler must not keep the process from ending after the grace period.
        thread = threading.Thread(target=self._run, args=(activity, args), daemon=True, name="penstock")
        with self._changing:  # whoever joins meanwhile finds it started, or not at all
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
        """Wait until all have ended; return False when the time is over first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._running():
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._running())

    def _running(self) -> list[threading.Thread]:
        with self._changing:
            return list(self._threads)

    def cancel(self) -> None:
        """Leave behind whatever still runs: its leases are given up, so what it says is refused."""

    def raise_failure(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None:
            raise self._failure


class Threads:
    """Runs plain functions; here the caller is a thread already."""

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
    """Collects what many callers submit and sends it on in batches, one batch at a time.

    Whatever other threads submit while a batch is under way travels together in the next one, sent by whichever of
    them comes first: no thread of its own, no hand-over between threads for a lone caller. `send_at_once`, if set, may
    send a batch in a shorter way; where it declines, `send` does.
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
        """Take an item in and return when it was sent."""
        waiting = self._waiting
        waiting.append(item)
        with self._turn:
            if item not in waiting:
                return  # the thread before us took it along
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
    """Finish the step: nothing cancels a thread."""
    step(*args)


def wait_out(_promise: Promise[Any]) -> BaseException | None:
    """Do nothing: the result is there, and nothing cancels a thread."""
    return None


def next_tick() -> None:
    """Do nothing: other threads run anyway."""


def side_by_side(limit: int, function: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """Call the function with every item, up to `limit` at a time, and return what it returned, in order.

    The first error is raised when all calls that had begun are through.
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
