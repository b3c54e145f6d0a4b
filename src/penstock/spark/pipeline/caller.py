"""Calls the workers' handler, async or plain, interprets what it returns, and enforces its timeout.

A handler that hangs does not block its task forever:

| the handler hangs in                              | what ends it                                                     |
|---------------------------------------------------|------------------------------------------------------------------|
| an await                                          | it is cancelled at the timeout                                   |
| Python, a system call (a socket, a lock, a sleep) | an alarm signal, whose handler raises an exception               |
| C code that ignores signals                       | the worker process exits a little later, and Spark repeats the   |
|                                                   | task. A message that was handled alone is dead-lettered first    |
| C code that also holds the GIL                    | the same, but nothing can be recorded any more                   |
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from penstock.errors import ConfigurationError, FatalError, HandlerTimeout, PenstockError, text_of
from penstock.model import StreamMessage
from penstock.policy import Reason
from penstock.runtime import aio, threads
from penstock.spark.pipeline.dead_letters import Failure

T = TypeVar("T")
logger = logging.getLogger("penstock.spark")
_MOST_GRACE_S = 5.0
_REPEAT_ALARM_S = 1.0  # until the next alarm, if the handler swallowed the exception
_DIED, _STDERR = 70, 2


class Alarm(BaseException):
    """Raised inside a handler; not an Exception, because handlers often catch those."""


class Deadline:
    """The timeout of each call of a handler; for the main thread, where Spark runs its tasks."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.grace_s = min(_MOST_GRACE_S, timeout_s)
        self._is_running = False

    @property
    def overdue(self) -> HandlerTimeout:
        """The error for a call that took too long."""
        return HandlerTimeout(f"handler exceeded its timeout of {self.timeout_s:g} s")

    def call(self, function: Callable[[], T], give_up: Callable[[], None]) -> T:
        """Call a function; raise HandlerTimeout at the timeout, and end the process if that has no effect.

        `give_up` is called in another thread before the process exits.
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
            signal.setitimer(signal.ITIMER_REAL, self.timeout_s, _REPEAT_ALARM_S)
            try:
                return function()
            finally:
                self._is_running = False
        except Alarm:
            raise self.overdue from None
        finally:
            self._is_running = False  # an alarm may have arrived just before the line above
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *timer)  # of other code, which gets it later than planned
            last.cancel()
            faulthandler.cancel_dump_traceback_later()

    def put_off(self) -> None:
        """Delay the alarm, so that cancelling the await comes first."""
        signal.setitimer(signal.ITIMER_REAL, self.timeout_s + self.grace_s, _REPEAT_ALARM_S)

    def _raise(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_running:  # otherwise it has just ended
            raise Alarm

    def _watch_from_c(self) -> None:
        # A C thread, which does not need the GIL; it also prints where the handler hangs.
        with suppress(OSError, ValueError):  # a worker without stderr
            faulthandler.dump_traceback_later(self.timeout_s + 4 * self.grace_s, exit=True, file=_STDERR)

    def _end(self, give_up: Callable[[], None]) -> None:
        if not self._is_running:
            return
        try:
            logger.error(
                "%s and could not be interrupted; this Python worker exits, and Spark repeats the task", self.overdue
            )
            with suppress(OSError, ValueError):
                faulthandler.dump_traceback(file=_STDERR)
            give_up()
        finally:
            os._exit(_DIED)


class NotDone(PenstockError):
    """A handler did not return the id of a message in any attempt."""


class _Ended(Exception):
    """Wraps a BaseException from a handler, so that it ends neither the event loop nor the task."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


@dataclass
class Outcome:
    """The output of the messages that are done, and the failures of the others, by id."""

    done: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)


Call: TypeAlias = Callable[[list[StreamMessage]], Any]
Answers: TypeAlias = list[tuple[str, Any]]  # ids that are done, with their output
GiveUp: TypeAlias = Callable[[str, Failure], None]
Alone: TypeAlias = Callable[[str], AbstractContextManager[object]]


def _forget(_entry_id: str, _failure: Failure) -> None:
    """Do nothing with a message that ends this process."""


class Caller:
    """Calls a handler, async or plain, and interprets what it returns.

    With an output, that is a mapping of ids to columns; without, a list of ids; if that is None, either.
    """

    def __init__(
        self, function: Call, attempts: int, *, has_output: bool | None, timeout_s: float | None = None
    ) -> None:
        self._function, self._attempts, self._has_output = function, attempts, has_output
        self._deadline = None if timeout_s is None else Deadline(timeout_s)
        self._runner: asyncio.Runner | None = None
        self._give_up: GiveUp = _forget

    def close(self) -> None:
        """Close the event loop, if an async handler needed one."""
        if self._runner is not None:
            self._runner.close()

    def handle(self, messages: list[StreamMessage], give_up: GiveUp = _forget, alone: Alone | None = None) -> Outcome:
        """Pass the messages to the handler together, and then those that are not done one by one.

        `give_up` is called with the message that makes this process exit. With `alone`, the handler gets all messages
        one by one, each inside the context that `alone` returns, because one of them has killed an earlier process.
        """
        self._give_up = give_up
        outcome = Outcome()
        if alone is None:
            self._settle(messages, outcome)
        else:
            for message in messages:
                with alone(message.id):
                    self._settle([message], outcome)
        return outcome

    def _settle(self, messages: list[StreamMessage], outcome: Outcome) -> None:
        error = self._try(messages, outcome)
        for message in messages:
            if message.id not in outcome.done:
                self._retry_alone(message, error if len(messages) == 1 else None, outcome)

    def _retry_alone(self, message: StreamMessage, error: BaseException | None, outcome: Outcome) -> None:
        for attempt in range(message.attempts + 1, self._attempts + 1):
            if isinstance(error, FatalError):
                break
            message.attempts = message.delivery_count = attempt
            error = self._try([message], outcome)
            if message.id in outcome.done:
                return
        if error is None:
            error = NotDone(f"handler did not return the id {message.id}")
        reason = Reason.FATAL if isinstance(error, FatalError) else Reason.MAX_DELIVERIES
        outcome.failed[message.id] = Failure(reason, error, message.attempts)

    def _try(self, messages: list[StreamMessage], outcome: Outcome) -> BaseException | None:
        try:
            answers = self._call(messages.copy())
        except ConfigurationError:
            raise  # the same for every message: the pipeline cannot continue
        except Exception as raised:
            error = raised.error if isinstance(raised, _Ended) else raised
            logger.warning(
                "handler failed on message %s%s in attempt %d: %s", messages[0].id,
                f" and {len(messages) - 1} more" if messages[1:] else "", messages[0].attempts, text_of(error, repr),
                exc_info=error,
            )  # fmt: skip
            return error
        asked = {message.id for message in messages}
        for entry_id, output in answers:
            if entry_id in asked:
                outcome.done[entry_id] = output
        return None

    def _call(self, messages: list[StreamMessage]) -> Answers:
        if self._deadline is None:
            return self._answer(messages)
        overdue = self._deadline.overdue

        def give_up() -> None:
            if len(messages) == 1:  # among several, it is unknown which one; the next task handles them one by one
                failure = Failure(Reason.MAX_DELIVERIES, overdue, messages[0].attempts)
                self._give_up(messages[0].id, failure)

        return self._deadline.call(lambda: self._answer(messages), give_up)

    def _answer(self, messages: list[StreamMessage]) -> Answers:
        try:
            answer = self._function(messages)
            if not inspect.isawaitable(answer):
                return _answers(answer, self._has_output)  # here, for the code of a generator runs only now
        except BaseException as error:
            raise _contained(error, threads.comes_from_outside)  # noqa: B904 - usually the same error
        if self._deadline is not None:
            self._deadline.put_off()
        runner, self._runner = self._runner or asyncio.Runner(), None
        try:
            found = runner.run(_awaited(answer, self._deadline))
        except Exception:
            self._runner = runner
            raise
        except BaseException:  # an alarm interrupted the loop, so its remaining tasks may never end
            runner.get_loop().close()
            raise
        self._runner = runner
        return _answers(found, self._has_output)


def _contained(error: BaseException, comes_from_outside: Callable[[BaseException], bool]) -> BaseException:
    """Return the error of a handler, wrapped if it would end more than this attempt."""
    if isinstance(error, Exception | Alarm) or comes_from_outside(error):
        return error
    return _Ended(error)


async def _awaited(answer: Any, deadline: Deadline | None) -> Any:
    try:
        return await _in_time(answer, deadline)
    except BaseException as error:
        raise _contained(error, aio.comes_from_outside)  # noqa: B904 - usually the same error


async def _in_time(answer: Any, deadline: Deadline | None) -> Any:
    if deadline is None:
        return await answer
    limit = asyncio.timeout(deadline.timeout_s)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if limit.expired():  # otherwise the handler raised it
            raise deadline.overdue from None
        raise


def _answers(answer: Any, has_output: bool | None) -> Answers:
    if answer is None:
        return []
    if has_output is None and isinstance(answer, Mapping):
        return [(str(entry_id), output) for entry_id, output in answer.items()]
    if has_output:
        if not isinstance(answer, Mapping) or not all(isinstance(value, Mapping) for value in answer.values()):
            raise ConfigurationError(
                "the step has an output, so its handler must return a mapping of ids to mappings of columns, "
                f"not {type(answer).__name__}"
            )
        return list(answer.items())
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        either = ", or a mapping of ids to results" if has_output is None else ""
        raise ConfigurationError(f"handler must return a list of message ids{either}, not {type(answer).__name__}")
    return [(str(entry_id), None) for entry_id in answer]


def is_repeated_task() -> bool:
    """Return whether Spark has started this task before: a message may have killed its worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
