"""The time that a report is about, and the axis of its plots, which fits the data in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.errors import ConfigurationError

_DAY_S = 86_400
# Lengths of intervals, and distances of ticks: those that people count time in.
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, _DAY_S)
_FEWEST, _MODEST, _MOST = 12, 24, 120  # intervals of an axis: at least, for little data, and at most
_MOST_TICKS = 8
_YEAR_MS = 366 * _DAY_S * 1000


@dataclass(frozen=True)
class Window:
    """From a time on, and before another one, in milliseconds since 1970."""

    low: int
    high: int

    @classmethod
    def of(cls, since: datetime, until: datetime, now: datetime) -> Window:
        """Return the time between two moments; raise ConfigurationError if nothing can have happened in it."""
        if since >= now:
            raise ConfigurationError(f"--since {_shown(since)} is in the future: nothing has happened since")
        if since >= until:
            raise ConfigurationError(f"--since ({_shown(since)}) must be before --until ({_shown(until)})")
        return cls(int(since.timestamp() * 1000), int(until.timestamp() * 1000))

    def within_sql(self, column: str) -> str:
        """Return the SQL for whether a time is in the window."""
        return f"{column} >= {self.low} and {column} < {self.high}"


@dataclass(frozen=True)
class TimeAxis:
    """Intervals of one length; each begins at a multiple of it."""

    low: int
    width_ms: int
    count: int

    @classmethod
    def fitting(cls, window: Window, first: int | None, last: int | None, rows: int) -> TimeAxis:
        """Return the axis for data between two times; `rows` is about how many there are.

        It spans the window, or the data alone if these fill less than half of it. Little data get few intervals, by the
        square root of their number.
        """
        low, high = window.low, window.high
        if first is not None and last is not None and last + 1 - first < (high - low) / 2:
            low, high = first, last + 1
        most = min(_MOST, max(_MODEST, 2 * math.isqrt(rows)))
        width = _step_ms((high - low) / most)
        start = low // width * width
        count = math.ceil((high - start) / width)
        if count > most:  # the first one began earlier than the data
            width = _step_ms(width + 1)
            start = low // width * width
            count = math.ceil((high - start) / width)
        missing = max(0, _FEWEST - count)
        return cls(start - missing // 2 * width, width, count + missing)

    @property
    def high(self) -> int:
        """The end of the last interval."""
        return self.low + self.count * self.width_ms

    @property
    def starts(self) -> list[int]:
        """The beginnings of all intervals."""
        return list(range(self.low, self.high, self.width_ms))

    def bucket_sql(self, column: str) -> str:
        """Return the SQL for the beginning of the interval that a time is in."""
        return f"({column} div {self.width_ms}) * {self.width_ms}"

    def label(self, start: int) -> str:
        """Return the name of an interval."""
        form = "%Y-%m-%d" if self.width_ms % (_DAY_S * 1000) == 0 else "%Y-%m-%d %H:%M"
        return _utc(start).strftime(form if self.width_ms % 60_000 == 0 else "%Y-%m-%d %H:%M:%S")

    @property
    def ticks(self) -> list[tuple[int, str]]:
        """The times that are named on the axis, each with its name; midnight is named by its day."""
        step = max(self.width_ms, _step_ms((self.high - self.low) / _MOST_TICKS))
        first = -(-self.low // step) * step
        return [(at, self._tick(at, step)) for at in range(first, self.high + 1, step)]

    def _tick(self, at: int, step: int) -> str:
        moment = _utc(at)
        if self.high - self.low > _YEAR_MS:
            return moment.strftime("%Y-%m-%d")
        if at % (_DAY_S * 1000) == 0:
            return f"{moment:%b} {moment.day}"
        return moment.strftime("%H:%M" if step % 60_000 == 0 else "%H:%M:%S")


def _step_ms(least_ms: float) -> int:
    """Return the shortest length that is not below another one: a usual one, or a number of days."""
    for step in _STEPS_S:
        if step * 1000 >= least_ms:
            return step * 1000
    return math.ceil(least_ms / 1000 / _DAY_S) * _DAY_S * 1000


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
