"""The user's functions, made uniform: async or plain, for a batch or for one message."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from penstock.errors import ConfigurationError
from penstock.model import StreamMessage
from penstock.runtime.aio import IS_ASYNC, Threads

logger = logging.getLogger("penstock.streams")

BatchHandler: TypeAlias = Callable[[list[StreamMessage]], Any]
MessageHandler: TypeAlias = Callable[[StreamMessage], Any]
Call: TypeAlias = Callable[[list[StreamMessage]], Awaitable[list[str] | None]]


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling the function gives a coroutine."""
    # An object whose type has an async __call__ is as good as an async function.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def awaitable(function: Callable[..., Any], threads: Threads, what: str) -> Callable[..., Awaitable[Any]]:
    """Return the function so that it can be awaited; a plain one runs in a thread."""
    if not callable(function):
        raise ConfigurationError(f"{what} must be a function, not {function!r}")
    if is_async(function):
        if not IS_ASYNC:
            raise ConfigurationError(f"{what} is async: use it with penstock.StreamConsumer, or give a plain function")
        return function

    async def call(*args: object) -> Any:
        result = await threads.run(function, *args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()  # else Python complains, later and elsewhere, that nobody awaited it
            raise ConfigurationError(f"{what} is a plain function that returned an awaitable: make it `async def`")
        return result

    return call


def batch_call(handler: Callable[..., Awaitable[Any]]) -> Call:
    """Return a call that hands a batch over and returns the ids to acknowledge."""

    async def call(messages: list[StreamMessage]) -> list[str] | None:
        returned = await handler(messages.copy())  # what the handler does to its list is its own affair
        if returned is None:
            logger.warning(
                "the handler returned None for %d message(s): nothing is acknowledged; return the ids that are done",
                len(messages),
            )
            return []
        if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
            raise ConfigurationError(f"the handler must return a list of ids, not {returned!r}")
        return returned if isinstance(returned, list) else list(returned)

    return call


def message_call(handler: Callable[..., Awaitable[Any]]) -> Call:
    """Return a call that hands over a single message; returning means that it is done."""

    async def call(messages: list[StreamMessage]) -> list[str] | None:
        await handler(messages[0])
        return None

    return call
