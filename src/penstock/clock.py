"""Time as a parameter: the system's clock, and one for tests that moves only when told to."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where code that measures or compares times gets them from."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards, from an arbitrary start: for durations."""

    def wall_ms(self) -> int:
        """Return the time of day in milliseconds since 1970 in UTC: for what others read."""


class SystemClock:
    """The clocks of the operating system."""

    # The C function itself and not a method around it: rates ask on the hot path.
    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        """Return the time of day in milliseconds since 1970 in UTC."""
        return time.time_ns() // 1_000_000


class FakeClock:
    """A clock for tests that stands still until `advance` is called."""

    def __init__(self, monotonic_s: float = 1_000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_s = monotonic_s
        self._wall_ms = float(wall_ms)

    def monotonic(self) -> float:
        """Return the seconds that the test has set."""
        return self._monotonic_s

    def wall_ms(self) -> int:
        """Return the milliseconds that the test has set."""
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError("time does not run backwards; use jump_wall for a clock that was set back")
        self._monotonic_s += seconds
        self._wall_ms += seconds * 1_000

    def jump_wall(self, seconds: float) -> None:
        """Set the time of day forwards or back, as an administrator or NTP does; monotonic time is unmoved."""
        self._wall_ms += seconds * 1_000
