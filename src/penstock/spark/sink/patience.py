"""How long a failure is borne: what passes by itself is tried again, with growing pauses, up to a time."""

from __future__ import annotations

import random
import time

from penstock.errors import GroupLost, PenstockError, TransientError
from penstock.redis.retry import pause_s
from penstock.redis.translate import Redirected
from penstock.runtime.threads import pause

_chance = random.Random()


class Patience:
    """Bears the failures of one undertaking. A success ends it: the next undertaking has a patience of its own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._failures = 0
        self._until = 0.0

    def bear(self, error: PenstockError, what: str) -> None:
        """Wait, and return if it is to be tried again; raise the error otherwise."""
        if not isinstance(error, TransientError) or isinstance(error, GroupLost):
            raise error
        now = time.monotonic()
        if not self._failures:
            self._until = now + self._timeout_s
        elif now >= self._until:
            text = f"{what} failed for {self._timeout_s:g} s, {self._failures + 1} times (option retryTimeout): {error}"
            raise type(error)(text) from error
        self._failures += 1
        # A slot on the move is served elsewhere in a moment: whoever waits longer meets the next move.
        pause(pause_s(1 if isinstance(error, Redirected) else self._failures, _chance))
