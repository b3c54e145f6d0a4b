"""Waiting for what must come true, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0
_POLL_S = 0.01


def eventually(
    condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S, story: Callable[[], str] = str
) -> T:
    """Returns the first true value of the condition; fails with the story when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain until {what}\n{story()}"
        time.sleep(_POLL_S)
    return value
