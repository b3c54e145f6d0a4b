"""How commands on Spark are stopped: the first SIGINT or SIGTERM ends them in order and with 0, a second one at once.

PySpark has its own handler for SIGINT, which cancels all jobs and raises KeyboardInterrupt wherever the main
thread is: a batch would be interrupted, and the terminal full of Java's stack traces.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.cli.java_output import silent_end
from penstock.cli.shown import say
from penstock.shutdown import SignalWatch, end_at_once


class Stopped(BaseException):
    """The command was asked to stop while nothing had to be finished.

    Not an Exception: functions that Spark calls, and those of users, often catch these.
    """


class Stopping:
    """Whether the command was asked to stop."""

    def __init__(self) -> None:
        self.is_requested = False
        self._can_interrupt = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Stopped within the body when the signal arrives: for code that only reads, or only starts something."""
        if self.is_requested:
            raise Stopped
        self._can_interrupt = True
        try:
            yield
        finally:
            self._can_interrupt = False

    @contextmanager
    def calling(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call a function when the signal arrives, in its own thread: it may take long."""
        unsubscribe = SignalWatch.subscribe(lambda: threading.Thread(target=stop, daemon=True).start())
        try:
            yield
        finally:
            unsubscribe()

    def _request(self) -> None:
        self.is_requested = True
        if self._can_interrupt:
            self._can_interrupt = False
            raise Stopped


@contextmanager
def stopping(what: str) -> Iterator[Stopping]:
    """Watch for signals while the body runs; if it is interrupted, print that, and end with code 0."""
    stop = Stopping()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in SignalWatch.SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # as a shell sets it for background jobs
                before[number] = signal.signal(number, end_at_once)
    unsubscribe = SignalWatch.subscribe(stop._request)  # noqa: SLF001 - of the same module
    try:
        yield stop
    except Stopped:
        say(f"{what}: stopped")
    finally:
        silent_end()
        unsubscribe()
        for number, handler in before.items():
            signal.signal(number, handler)
