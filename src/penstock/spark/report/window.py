"""The time that a report is about, and how it is cut into intervals for plots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.errors import ConfigurationError

_MOST = 120  # intervals: more than that a plot cannot show
_WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400)
_DAY_S = 86_400


@dataclass(frozen=True)
class Window:
    """From a time on, and before another one, in milliseconds since 1970."""

    low: int
    high: int

    @classmethod
    def of(cls, since: datetime, until: datetime, now: datetime) -> Window:
        """Return the time between two moments; raise ConfigurationError if nothing can lie between them."""
        if since >= now:
            raise ConfigurationError(f"--since {_shown(since)} is in the future: nothing has happened since")
        if since >= until:
            raise ConfigurationError(f"--since ({_shown(since)}) must be before --until ({_shown(until)})")
        return cls(int(since.timestamp() * 1000), int(until.timestamp() * 1000))

    @property
    def width_ms(self) -> int:
        """The length of an interval."""
        span_s = (self.high - self.low) / 1000
        for width in _WIDTHS_S:
            if span_s / width < _MOST:
                return width * 1000
        return (int(span_s / _MOST / _DAY_S) + 1) * _DAY_S * 1000

    @property
    def starts(self) -> list[int]:
        """The beginnings of all intervals: multiples of their length, the first one at or before the window's."""
        width = self.width_ms
        return list(range(self.low // width * width, self.high, width))

    def bucket_sql(self, column: str) -> str:
        """Return the SQL for the interval that a time lies in."""
        return f"({column} div {self.width_ms}) * {self.width_ms}"

    def within_sql(self, column: str) -> str:
        """Return the SQL for whether a time lies in the window."""
        return f"{column} >= {self.low} and {column} < {self.high}"


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
