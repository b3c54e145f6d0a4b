"""SIGTERM and SIGINT: the first asks for a graceful shutdown, the second ends the process."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, ClassVar

logger = logging.getLogger("penstock.shutdown")

_Handler = Callable[[int, Any], Any] | int | None
INTERRUPTED = 130  # as a shell reports Ctrl-C
_PYSPARK = ("pyspark.core.context", "pyspark.context")
_RUNNER_METHOD = getattr(asyncio.Runner, "_on_sigint", None)


class SignalOwner:
    """Has installed its method `handle_signal` for signals, and is called together with the subscribers."""

    def handle_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: the first one asks, the second has its usual effect."""


class SignalWatch:
    """Calls its subscribers when the process is asked to end; there is one per process.

    Handlers are installed with the first subscriber, in the main thread only, and only where nobody else has installed
    one (a default, the one of `asyncio.run`, or PySpark's, which aborts whatever runs), or a SignalOwner, which is
    called after the subscribers; they are removed with the last subscriber. They are plain signal handlers and not
    those of an event loop, so that they work alike for asyncio, uvloop and threads.

    Guarantees: the first signal calls every subscriber once, and whoever subscribes while the others still stop is
    called at once. The second signal, or one that finds no subscriber, has the effect it had before: SIGTERM kills,
    SIGINT raises KeyboardInterrupt. A forked child starts without subscribers and handlers of its parent.
    """

    SIGNALS: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGINT)
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _subscribers: ClassVar[dict[object, Callable[[], object]]] = {}  # replaced, never changed: handlers take no lock
    _previous: ClassVar[dict[signal.Signals, _Handler]] = {}
    _is_requested: ClassVar[bool] = False

    @classmethod
    def subscribe(cls, callback: Callable[[], object]) -> Callable[[], None]:
        """Call the callback on the first signal; return a function that ends the subscription.

        The callback runs in the main thread, between any two of its instructions: it should do no more than set a
        flag, or call `loop.call_soon_threadsafe`, which also wakes a waiting loop.
        """
        token = object()
        with cls._lock:
            cls._subscribers = {**cls._subscribers, token: callback}
            if _is_main_thread():
                cls._install()
        if cls._is_requested:
            callback()
        return functools.partial(cls._unsubscribe, token)

    @classmethod
    def _unsubscribe(cls, token: object) -> None:
        with cls._lock:
            cls._subscribers = {other: callback for other, callback in cls._subscribers.items() if other is not token}
            if cls._subscribers:
                return
            cls._is_requested = False
            # Another thread cannot restore handlers; the handler itself does so when there is no subscriber.
            if _is_main_thread():
                cls._restore()

    @classmethod
    def _install(cls) -> None:
        for number in cls.SIGNALS:
            current = signal.getsignal(number)
            if current in (signal.SIG_DFL, signal.default_int_handler, end_at_once) or _is_foreign(current):
                cls._previous[number] = current
                signal.signal(number, cls._handle)

    @classmethod
    def _restore(cls) -> None:
        for number in list(cls._previous):
            previous = cls._previous.pop(number)
            if signal.getsignal(number) is not cls._handle:
                continue  # replaced by someone else since
            if _is_of_runner(previous) and previous.keywords["main_task"].done():  # type: ignore[union-attr]
                previous = signal.default_int_handler  # as the runner itself does when it ends
            signal.signal(number, previous)

    @staticmethod
    def _handle(number: int, frame: FrameType | None) -> None:
        cls = SignalWatch
        if cls._is_requested or not cls._subscribers:
            cls._end(signal.Signals(number))
            return
        cls._is_requested = True
        for callback in cls._subscribers.values():
            try:
                callback()
            except Exception:
                # Raised here, it would interrupt the main thread, and the other subscribers would not be called.
                logger.exception("a subscriber to %s raised an error", signal.Signals(number).name)
        owner = _owner_of(cls._previous.get(signal.Signals(number)))
        if owner is not None:
            owner.handle_signal(number, frame)

    @classmethod
    def _end(cls, number: signal.Signals) -> None:
        previous = cls._previous.pop(number, signal.SIG_DFL)
        # The handler of asyncio.run would only cancel the main task, which a blocked loop never notices.
        signal.signal(number, signal.default_int_handler if _is_of_runner(previous) else previous)
        signal.raise_signal(number)

    @classmethod
    def forget_parent(cls) -> None:
        """Start afresh in a forked child; called by the interpreter."""
        cls._lock = threading.RLock()  # a thread that exists only in the parent may hold the old one
        cls._subscribers, cls._is_requested = {}, False
        cls._restore()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def end_at_once(_number: int, _frame: object) -> None:
    """End the process, whatever it is doing: commands install this for the second signal (see `SignalWatch`)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError):  # the signal may have arrived during a write
            stream.flush()
    os._exit(INTERRUPTED)


def _is_foreign(handler: _Handler) -> bool:
    """Return whether a handler was installed by asyncio.run, PySpark or a SignalOwner, and may be replaced."""
    is_known = _is_of_runner(handler) or getattr(handler, "__module__", None) in _PYSPARK
    return is_known or _owner_of(handler) is not None


def _owner_of(handler: _Handler) -> SignalOwner | None:
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, SignalOwner) else None


def _is_of_runner(handler: _Handler) -> bool:
    """Return whether a handler is the one that asyncio.run installs for SIGINT."""
    if not isinstance(handler, functools.partial):
        return False
    return _RUNNER_METHOD is not None and getattr(handler.func, "__func__", None) is _RUNNER_METHOD


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SignalWatch.forget_parent)
