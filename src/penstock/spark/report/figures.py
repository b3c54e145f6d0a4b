"""What a report says, before it is a page: numbers and short texts, few of each however many messages there are."""

from __future__ import annotations

from dataclasses import dataclass, field

SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)
SHARE_NAMES = ("p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Spread:
    """How values are spread: of how many it is known, and the values below which the shares lie."""

    count: int = 0
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Group:
    """Some messages, dead letters or results that have something in common."""

    name: str | int | None
    count: int
    bytes: int = 0
    first: Spread = Spread()  # messages: sizes; dead letters: time until death; results: from the making to the end
    second: Spread = Spread()  # messages: from the making to the stream; results: the run


@dataclass(frozen=True)
class Family:
    """Everything of one sort, whole and by different names; a list has the biggest or slowest groups only."""

    whole: Group = Group(None, 0)
    by: dict[str, list[Group]] = field(default_factory=dict)

    def of(self, name: str) -> list[Group]:
        """Return the groups by one of the names."""
        return self.by.get(name, [])


@dataclass(frozen=True)
class Fingerprint:
    """Dead letters that died of the same."""

    reason: str
    error: str
    text: str
    count: int
    first_ms: int
    last_ms: int
    example: str  # id of the newest of them


@dataclass(frozen=True)
class Payload:
    """One of the biggest messages."""

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
class Coverage:
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

    messages: Family = Family()
    dead: Family = Family()
    results: Family | None = None  # None = there is nowhere to read results from
    fingerprints: tuple[Fingerprint, ...] = ()
    fingerprint_count: int = 0
    payloads: tuple[Payload, ...] = ()
    coverage: Coverage | None = None
    notes: tuple[str, ...] = ()
