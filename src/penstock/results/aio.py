"""Doing many things side by side, asyncio half. The sync half is generated against the twin, threads.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def side_by_side(limit: int, function: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Call the function with every item, so many at a time, and return what it returned, in order.

    The first error is raised when all that had begun are through.
    """
    slots, failures = asyncio.Semaphore(limit), list[BaseException]()

    async def call(item: A) -> T | None:
        async with slots:
            if failures:
                return None
            try:
                return await function(item)
            except BaseException as error:
                failures.append(error)
                raise

    results = await asyncio.gather(*map(call, items), return_exceptions=True)
    if failures:
        raise failures[0]
    return results  # type: ignore[return-value]
