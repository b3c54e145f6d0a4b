"""Calls what a user gave to be called when something happens, and never lets it disturb what happens."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger("penstock")
_running: set[asyncio.Future[None]] = set()  # an event loop holds its tasks weakly


def call_back(function: Callable[..., Any], what: str, *args: object) -> None:
    """Call a function; one that is async runs as a task of the running event loop. What it raises is logged."""
    try:
        result = function(*args)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(_finish(result, what))
            _running.add(task)
            task.add_done_callback(_running.discard)
    except Exception:
        logger.exception("%s failed", what)


async def _finish(result: Awaitable[Any], what: str) -> None:
    try:
        await result
    except Exception:
        logger.exception("%s failed", what)
