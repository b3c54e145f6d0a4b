"""What a report says, before it is a page: its time, and a few numbers and texts, however many messages there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.errors import ConfigurationError
from penstock.ops.model import GroupInfo

_DAY_S = 86_400
# Lengths of intervals, and distances of ticks: those that people count time in.
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, _DAY_S)
_FEWEST, _MODEST, _MOST = 12, 24, 120  # intervals of an axis: at least, for little data, and at most
_MOST_TICKS = 8
_YEAR_MS = 366 * _DAY_S * 1000
SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)
SHARE_NAMES = ("p50", "p90", "p95", "p99", "max")
P95 = SHARE_NAMES.index("p95")


@dataclass(frozen=True)
class Window:
    """From a time on, and before another one, in milliseconds since 1970."""

    low: int
    high: int

    @classmethod
    def of(cls, since: datetime, until: datetime, now: datetime) -> Window:
        """Return the time between two moments; raise ConfigurationError if nothing can have happened in it."""
        if since >= now:
            raise ConfigurationError(f"--since {_shown(since)} is in the future")
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


@dataclass(frozen=True)
class Percentiles:
    """How values are distributed: of how many rows one is known, and the values at the shares."""

    count: int = 0
    values: tuple[int, ...] = ()

    def at(self, index: int) -> int | None:
        """Return one of the values; None if none is known."""
        return self.values[index] if self.values else None


@dataclass(frozen=True)
class Aggregate:
    """Messages, dead letters or results that have something in common."""

    name: str | int | None
    count: int
    bytes: int = 0
    # messages: sizes; dead letters: from publishing to death; results: from the making of the task to its end
    first: Percentiles = Percentiles()
    # messages: from the making to the stream; results: the last run
    second: Percentiles = Percentiles()


@dataclass(frozen=True)
class Aggregates:
    """Everything of one sort, as a whole and by column; a list has the biggest or slowest ones only."""

    whole: Aggregate = Aggregate(None, 0)
    by: dict[str, list[Aggregate]] = field(default_factory=dict)

    def of(self, column: str) -> list[Aggregate]:
        """Return the aggregates by one of the columns."""
        return self.by.get(column, [])

    def counts(self, column: str) -> dict[str | int | None, int]:
        """Return how many rows have which value of a column."""
        return {each.name: each.count for each in self.of(column)}


@dataclass(frozen=True)
class Failures:
    """Messages published in the time that have become dead letters in it, each counted once."""

    count: int = 0
    by_kind: Mapping[str | None, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """Dead letters with the same reason, error class and text."""

    reason: str
    error: str
    text: str
    count: int
    first_ms: int
    last_ms: int
    newest: str  # id of the newest of them


@dataclass(frozen=True)
class LargePayload:
    """One of the largest messages."""

    stream: str
    id: str
    kind: str | None
    key: str | None
    bytes: int


@dataclass(frozen=True)
class Day:
    """What an archive has of one day."""

    date: str
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class ArchiveCoverage:
    """What an archive has of the stream."""

    root: str
    days: tuple[Day, ...]
    upto: str | None
    lost: int | None
    waiting: int | None  # entries in Redis that are not archived; None = unknown
    is_known: bool = True  # whether the archive has the stream at all


@dataclass(frozen=True)
class Figures:
    """Everything that is on the page."""

    axis: TimeAxis
    messages: Aggregates = Aggregates()
    dead: Aggregates = Aggregates()
    results: Aggregates | None = None  # None = there is nowhere to read results from
    failures: Failures = Failures()
    causes: tuple[Cause, ...] = ()
    cause_count: int = 0
    payloads: tuple[LargePayload, ...] = ()
    groups: tuple[GroupInfo, ...] = ()
    coverage: ArchiveCoverage | None = None
    trimmed: tuple[str, ...] = ()  # a sentence for each stream that has lost entries of the window
