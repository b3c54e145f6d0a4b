"""Doing many things side by side, threads half: the twin of aio.py, name by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


def side_by_side(limit: int, function: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """Call the function with every item, so many at a time, and return what it returned, in order.

    The first error is raised when all that had begun are through.
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
