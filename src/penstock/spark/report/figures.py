"""What a report says, before it is a page: numbers and short texts, few of each however many messages there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.ops.model import GroupInfo
from penstock.spark.report.window import TimeAxis

SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)
SHARE_NAMES = ("p50", "p90", "p95", "p99", "max")
P95 = SHARE_NAMES.index("p95")


@dataclass(frozen=True)
class Percentiles:
    """How values are distributed: of how many rows one is known, and the values at the shares."""

    count: int = 0
    values: tuple[int, ...] = ()

    def at(self, place: int) -> int | None:
        """Return one of the values; None if none is known."""
        return self.values[place] if self.values else None


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
    trimmed: tuple[str, ...] = ()  # a sentence for each stream of which a part of the window is gone
