"""Calls the user's functions, async or plain, for a batch or one message, and interrupts running calls."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from penstock.errors import ConfigurationError, PenstockError
from penstock.model import StreamMessage
from penstock.runtime.aio import IS_ASYNC, Activity, Threads
from penstock.type_checks import check_arguments, is_async

logger = logging.getLogger("penstock.delivery")

BatchHandler: TypeAlias = Callable[[list[StreamMessage]], Any]
MessageHandler: TypeAlias = Callable[[StreamMessage], Any]
HandlerCall: TypeAlias = Callable[[list[StreamMessage]], Awaitable[list[str] | None]]


class RunningCall:
    """The messages that a worker is handling, so that this call, and no other, can be interrupted."""

    __slots__ = ("cause", "deadline_s", "is_busy", "job", "messages")

    def __init__(self) -> None:
        self.messages: Sequence[Any] = ()  # or tasks; empty = no handler runs
        self.deadline_s = math.inf
        self.is_busy = False
        self.job = Activity.current()
        self.cause: PenstockError | None = None

    def is_overdue(self, now_s: float) -> bool:
        """Return whether the call has taken too long."""
        return self.deadline_s < now_s and bool(self.messages)

    def interrupt(self, cause: PenstockError) -> None:
        """End the running call with the cause; a plain function in a thread cannot be stopped and keeps running."""
        if self.messages and self.job is not None and self.cause is None:
            self.cause = cause
            self.job.interrupt()

    def resume(self) -> None:
        """Continue after an interruption, which was meant for one call."""
        self.cause = None
        Activity.resume()


def hung(calls: list[RunningCall], lease_s: float) -> list[Any]:
    """Return the messages, or tasks, of calls that ran out of time a lease ago.

    They are no longer renewed, so that another worker can take them: a call that cannot be stopped may never end.
    """
    late_s = time.monotonic() - lease_s
    return [item for call in list(calls) if call.is_overdue(late_s) for item in call.messages]


def check_takes(what: str, function: Callable[..., Any], *, batches: bool) -> None:
    """Raise ConfigurationError if the function's annotation shows that it is for the other kind of handler."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (ValueError, TypeError):
        return  # some built-in functions have no signature
    annotation = getattr(first, "annotation", None)
    shown = annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", ""))
    kind = shown.partition("[")[0].rpartition(".")[2]
    if batches and kind == "StreamMessage":
        raise ConfigurationError(
            f"{what} is called with a list of messages, but takes a StreamMessage: pass it as message_handler"
        )
    if not batches and kind in {"list", "List", "Sequence"}:
        raise ConfigurationError(f"{what} is called with a single message, but takes a list: pass it as handler")


def awaitable(
    function: Callable[..., Any], threads: Threads, what: str, arguments: int = 1
) -> Callable[..., Awaitable[Any]]:
    """Return the function as an awaitable one; a plain function runs in a thread."""
    if not callable(function):
        raise ConfigurationError(f"{what} must be a function, not {function!r}")
    check_arguments(what, function, arguments)
    if is_async(function):
        if not IS_ASYNC:
            raise ConfigurationError(f"{what} is async: pass a plain function, or import the class without `.sync`")
        return function

    async def call(*args: object) -> Any:
        result = await threads.run(function, *args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()  # else Python warns later that it was never awaited
            raise ConfigurationError(
                f"{what} is a plain function that returned an awaitable: declare it with `async def`"
            )
        return result

    return call


def batch_call(handler: Callable[..., Awaitable[Any]]) -> HandlerCall:
    """Return a call that passes a batch to the handler and returns the ids to acknowledge."""

    async def call(messages: list[StreamMessage]) -> list[str] | None:
        returned = await handler(messages.copy())  # the handler may modify its list
        if returned is None:
            logger.warning(
                "handler returned None for %d message(s), so none is acknowledged; return the ids of finished messages",
                len(messages),
            )
            return []
        if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
            raise ConfigurationError(f"handler must return a list of message ids, not {returned!r}")
        return returned if isinstance(returned, list) else list(returned)

    return call


def message_call(handler: Callable[..., Awaitable[Any]]) -> HandlerCall:
    """Return a call that passes a single message to the handler; returning means that it is finished."""

    async def call(messages: list[StreamMessage]) -> list[str] | None:
        await handler(messages[0])
        return None

    return call
