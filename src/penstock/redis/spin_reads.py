"""When it pays to look for a reply a moment longer instead of going to sleep until it is there."""

from __future__ import annotations

import os
from time import perf_counter

_SPIN_S = 120e-6  # by the clock: where calls of the system are slow, a hundred looks take milliseconds
_MOST_SKIPPED = 64  # requests after looks in vain


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spin_read(file: int, most: int) -> bytes | None:
    """Look for bytes on a non-blocking socket for a moment; None = none came, b"" = there will be no more."""
    until = perf_counter() + _SPIN_S
    while True:
        try:
            return os.read(file, most)
        except BlockingIOError:
            if perf_counter() >= until:
                return None
        except OSError:
            return None  # whoever waits for the socket is told too


class SpinReads:
    """Decides for one connection, by what came of the last look."""

    __slots__ = ("_in_vain", "_skip")

    def __init__(self) -> None:
        # With one processor the server cannot answer while we look.
        self._skip, self._in_vain = (0 if processors() > 1 else -1), 0

    def is_worthwhile(self) -> bool:
        """Tell whether to look at all."""
        if self._skip:
            self._skip -= self._skip > 0
            return False
        return True

    def note(self, is_found: bool) -> None:
        """Take note of whether the reply was seen: if not, the server is far away or busy, or has nothing to say."""
        if is_found:
            self._in_vain = 0
        else:  # one in vain may be chance
            self._skip, self._in_vain = self._in_vain, min(2 * self._in_vain or 2, _MOST_SKIPPED)
