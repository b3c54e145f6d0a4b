"""Finds what does not go through, among much that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def bisected(items: Sequence[T], attempt: Callable[[Sequence[T]], E | None]) -> Iterator[tuple[T, E]]:
    """Yield the items for which an attempt fails, with why; `attempt` returns what went wrong with some of them."""
    error = attempt(items) if items else None
    if error is None:
        return
    if len(items) == 1:
        yield items[0], error
        return
    half = len(items) // 2
    yield from bisected(items[:half], attempt)
    yield from bisected(items[half:], attempt)
