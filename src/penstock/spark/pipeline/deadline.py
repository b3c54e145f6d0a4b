"""How long a handler may take, in the Python worker of a task: whatever it hangs in, the task does not hang with it.

| the handler hangs in                              | what ends it                                                     |
|---------------------------------------------------|------------------------------------------------------------------|
| an await                                          | it is cancelled when the time is over                            |
| Python, a system call (a socket, a lock, a sleep) | an alarm signal, which raises in the midst of it                 |
| C code that pays no heed to signals               | the worker process is ended a little later, and Spark repeats    |
|                                                   | the task. The one message in hand is given up before that        |
| C code that holds the interpreter's lock as well  | the same, but nothing can be noted any more                      |
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

from penstock.errors import HandlerTimeout, PenstockError

T = TypeVar("T")
logger = logging.getLogger("penstock.spark")
_MOST_GRACE_S = 5.0
_AGAIN_S = 1.0  # after an alarm that a handler has swallowed
_DIED, _STDERR = 70, 2


class Alarm(BaseException):
    """Raised in the midst of a handler; no Exception, which handlers like to catch."""


class Deadline:
    """The time that each call of a handler has; for the main thread, in which Spark runs its tasks."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.grace_s = min(_MOST_GRACE_S, timeout_s)
        self._is_running = False

    @property
    def overdue(self) -> HandlerTimeout:
        """What a call that took too long is told as."""
        return HandlerTimeout(f"the handler ran longer than {self.timeout_s:g} s")

    def call(self, function: Callable[[], T], give_up: Callable[[], None]) -> T:
        """Call a function; raise HandlerTimeout when its time is over, and end the process if that has no effect.

        `give_up` is called in another thread before the process is ended.
        """
        if threading.current_thread() is not threading.main_thread():
            raise PenstockError("a handler with a timeout must run in the main thread, as it does in Spark's workers")
        before, timer = signal.signal(signal.SIGALRM, self._raise), signal.setitimer(signal.ITIMER_REAL, 0)
        last = threading.Timer(self.timeout_s + 2 * self.grace_s, self._end, (give_up,))
        last.daemon = True
        try:
            last.start()
            self._watch_from_c()
            self._is_running = True
            signal.setitimer(signal.ITIMER_REAL, self.timeout_s, _AGAIN_S)
            try:
                return function()
            finally:
                self._is_running = False
        except Alarm:
            raise self.overdue from None
        finally:
            self._is_running = False  # an alarm may have come just before it was said above
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *timer)  # of somebody else's, who gets it later than planned
            last.cancel()
            faulthandler.cancel_dump_traceback_later()

    def put_off(self) -> None:
        """Give an await the time to end by itself, before the alarm."""
        signal.setitimer(signal.ITIMER_REAL, self.timeout_s + self.grace_s, _AGAIN_S)

    def _raise(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_running:  # else it has just ended
            raise Alarm

    def _watch_from_c(self) -> None:
        # A thread of C's own, which needs no lock of the interpreter; it shows where the handler hangs as well.
        with suppress(OSError, ValueError):  # a worker without an error stream
            faulthandler.dump_traceback_later(self.timeout_s + 4 * self.grace_s, exit=True, file=_STDERR)

    def _end(self, give_up: Callable[[], None]) -> None:
        if not self._is_running:
            return
        try:
            logger.error("%s and cannot be interrupted: this worker ends, and Spark repeats the task", self.overdue)
            with suppress(OSError, ValueError):
                faulthandler.dump_traceback(file=_STDERR)
            give_up()
        finally:
            os._exit(_DIED)
