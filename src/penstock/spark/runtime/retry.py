"""Retries of what fails for a while: with growing pauses, up to a time."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import GroupLost, PenstockError, ServerBusy, TransientError
from penstock.redis.retry import pause_s
from penstock.redis.translate import Redirected
from penstock.runtime.threads import pause

logger = logging.getLogger("penstock.spark")
T = TypeVar("T")
_chance = random.Random()


class Retries:
    """Counts the failures of one undertaking. A success ends it: the next undertaking has retries of its own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._failures = 0
        self._until = 0.0

    def wait_or_raise(self, error: PenstockError, what: str) -> None:
        """Wait, and return if it is to be tried again; raise the error otherwise."""
        if not isinstance(error, TransientError) or isinstance(error, GroupLost):
            raise error
        now = time.monotonic()
        if not self._failures:
            self._until = now + self._timeout_s
            logger.warning("%s failed and is tried again for up to %g s: %s", what, self._timeout_s, error)
        elif now >= self._until:
            text = f"{what} failed for {self._timeout_s:g} s, {self._failures + 1} times (option retryTimeout): {error}"
            # A redirection is made of the server's words, and of no others.
            kind = ServerBusy if isinstance(error, Redirected) else type(error)
            raise kind(text) from error
        self._failures += 1
        # A slot on the move is served elsewhere in a moment: whoever waits longer meets the next move.
        pause(pause_s(1 if isinstance(error, Redirected) else self._failures, _chance))


def retry(step: Callable[[], T], timeout_s: float, what: str = "reading streams") -> T:
    """Repeat a step that only reads while Redis is away, restarts, is paused or moves slots, but not for ever."""
    retries = Retries(timeout_s)
    while True:
        try:
            return step()
        except TransientError as error:
            retries.wait_or_raise(error, what)
