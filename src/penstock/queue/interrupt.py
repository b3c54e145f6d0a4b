"""Interrupt handlers, which make a queue stop taking messages."""

from __future__ import annotations

import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import FrameType

from penstock.errors import ConfigurationError, ConfigurationTypeError
from penstock.shutdown import SignalOwner

logger = logging.getLogger("penstock.queue")
_DEFAULT_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
_NEVER_CAUGHT = tuple(getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name))


class BaseGracefulInterruptHandler(ABC):
    """Decides whether a queue stops: called before each message, and several times a second while waiting."""

    @abstractmethod
    def is_interrupted(self) -> bool:
        """Return True once no more work should be taken."""


class EventDrivenInterruptHandler(BaseGracefulInterruptHandler):
    """Interrupts once an event is set; for applications that handle signals themselves."""

    def __init__(self, stop_event: threading.Event) -> None:
        if not callable(getattr(stop_event, "is_set", None)):
            raise ConfigurationTypeError(
                f"stop_event must have an is_set() method, like threading.Event, not {stop_event!r}"
            )
        self._stop_event = stop_event

    def is_interrupted(self) -> bool:
        """Return whether the event is set."""
        return bool(self._stop_event.is_set())


class GracefulInterruptHandler(BaseGracefulInterruptHandler, SignalOwner):
    """Interrupts on the first SIGINT, SIGTERM or SIGHUP; the second has its usual effect.

    Can only be created in the main thread, for signals that still have their default handler. A signal that the process
    ignores, as after nohup or in a shell's background job, stays ignored. Consumers and workers that run in the same
    process stop on the same signals.
    """

    def __init__(self, verbose: bool = True, signals: Iterable[signal.Signals] = _DEFAULT_SIGNALS) -> None:
        if not isinstance(verbose, bool):
            raise ConfigurationTypeError(f"verbose={verbose!r} must be True or False, not {type(verbose).__name__}")
        self._verbose, self._is_interrupted = verbose, False
        self._previous: dict[signal.Signals, object] = {}
        wanted = [number for number in _checked(signals) if signal.getsignal(number) is not signal.SIG_IGN]
        for number in wanted:
            _check_free(number)
        for number in wanted:
            self._previous[number] = signal.signal(number, self.handle_signal)

    def is_interrupted(self) -> bool:
        """Return whether a signal was received."""
        return self._is_interrupted

    def release(self) -> None:
        """Restore the default handlers of the signals; is_interrupted() keeps its value."""
        for number in list(self._previous):
            self._give_back(number)

    def _give_back(self, number: signal.Signals) -> None:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        previous = self._previous.pop(number, usual)
        if signal.getsignal(number) == self.handle_signal:  # else it has been replaced since
            signal.signal(number, previous)  # type: ignore[arg-type]  # what signal.signal() returned before

    def handle_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; called by the interpreter, or by SignalWatch."""
        is_released = number not in self._previous
        if is_released and signal.getsignal(number) != self.handle_signal:
            return  # SignalWatch had replaced it, and has its own subscribers
        if self._is_interrupted or is_released:
            self._give_back(signal.Signals(number))
            signal.raise_signal(number)
            return
        self._is_interrupted = True
        if self._verbose:
            logger.warning(
                "%s: finishing messages in progress; send it again to stop immediately", signal.Signals(number).name
            )


def _checked(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
    try:
        wanted = [signal.Signals(number) for number in signals]
    except (TypeError, ValueError) as error:
        raise ConfigurationTypeError(f"signals must be a tuple such as (signal.SIGTERM,): {error}") from error
    if not wanted:
        raise ConfigurationError("signals must name at least one signal, such as signal.SIGTERM")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "GracefulInterruptHandler must be created in the main thread, where Python delivers signals; in "
            "other threads use EventDrivenInterruptHandler"
        )
    return list(dict.fromkeys(wanted))


def _check_free(number: signal.Signals) -> None:
    if number in _NEVER_CAUGHT:
        raise ConfigurationError(f"no process can catch {number.name}: use SIGINT, SIGTERM or SIGHUP")
    present = signal.getsignal(number)
    if isinstance(getattr(present, "__self__", None), GracefulInterruptHandler):
        raise ConfigurationError(
            f"another GracefulInterruptHandler already handles {number.name}: share it, or call its release() first"
        )
    if present not in (signal.SIG_DFL, signal.default_int_handler):
        raise ConfigurationError(
            f"{number.name} already has a handler, which this one would replace: create this one first (before "
            "asyncio.run(), which handles SIGINT), or set the event of an EventDrivenInterruptHandler in the "
            "existing handler"
        )
