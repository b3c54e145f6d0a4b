"""Decides when to poll for a reply for a moment instead of sleeping until it arrives."""

from __future__ import annotations

import os
from time import perf_counter

_SPIN_S = 120e-6  # measured in time: where system calls are slow, a hundred polls take milliseconds
_MAX_SKIPPED = 64  # requests after polls without a reply


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spin_read(file: int, most: int) -> bytes | None:
    """Poll a non-blocking socket for a moment; return None if no bytes arrived, b"" at the end of the stream."""
    until = perf_counter() + _SPIN_S
    while True:
        try:
            return os.read(file, most)
        except BlockingIOError:
            if perf_counter() >= until:
                return None
        except OSError:
            return None  # a later read reports it, too


class SpinReads:
    """Decides for one connection, from the outcome of the last poll."""

    __slots__ = ("_misses", "_skip")

    def __init__(self) -> None:
        # With one processor, the server cannot answer while we poll.
        self._skip, self._misses = (0 if processors() > 1 else -1), 0

    def is_worthwhile(self) -> bool:
        """Return whether to poll."""
        if self._skip:
            self._skip -= self._skip > 0
            return False
        return True

    def note(self, is_found: bool) -> None:
        """Record whether polling found the reply; if not, the server is far away, busy or has nothing to send."""
        if is_found:
            self._misses = 0
        else:  # a single miss may be chance
            self._skip, self._misses = self._misses, min(2 * self._misses or 2, _MAX_SKIPPED)
