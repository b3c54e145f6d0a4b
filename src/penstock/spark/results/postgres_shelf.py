"""Results in PostgreSQL: a task reads a range of times, along the index on `finished_at`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.errors import BackendRefused, ConfigurationError
from penstock.spark.results.shelf import Sizes
from penstock.spark.results.wanted import Wanted
from penstock.sync.results.postgres import PostgresBackend
from penstock.task import Result

_ROW_BYTES = 250  # of a small result; it need not be right
_SAMPLES_A_CUT = 200
_CHUNK = 1_000
_NO_TABLE = "42P01"  # the SQLSTATE
_SIZE = "SELECT pg_relation_size('penstock_results')"
# Some pages are enough to know where the results lie in time, and the same ones are taken each time.
_CUTS = """
SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY finished_at)
FROM penstock_results TABLESAMPLE SYSTEM (%s) REPEATABLE (0)
"""


@dataclass(frozen=True)
class TimeRange:
    """From a time on, and before another one; None = without end."""

    low: datetime | None = None
    high: datetime | None = None


@dataclass(frozen=True)
class PostgresShelf:
    """The table of a PostgresBackend."""

    dsn: str = field(repr=False)
    timeout_s: float = 30.0

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[TimeRange]:
        """Cut the results into ranges of time that hold about as many each."""
        backend = PostgresBackend(self.dsn, timeout_s=self.timeout_s)
        with (
            _translated(backend, "plan a query of results"),
            closing(backend.connect()) as connection,
            backend.limited(connection),
        ):
            cuts = _cuts(connection, sizes)
        ranges = [TimeRange(low, high) for low, high in itertools.pairwise([None, *cuts, None])]
        return [each for each in ranges if _meets(each, wanted)]

    def read(self, part: TimeRange, wanted: Wanted) -> Iterator[Sequence[Result]]:
        """Yield the results of a range, from a cursor in the server."""
        backend = PostgresBackend(self.dsn, timeout_s=self.timeout_s)
        with _translated(backend, "read results"):
            yield from backend.pages(*_query(part, wanted), _CHUNK, prepares=False)


@contextmanager
def _translated(backend: PostgresBackend, what: str) -> Iterator[None]:
    try:
        with backend.translated(what):
            yield
    except BackendRefused as error:
        if getattr(error.__cause__, "sqlstate", None) != _NO_TABLE:
            raise
        raise ConfigurationError(
            f"there are no results in {backend.where}: it has no table penstock_results; check the database and its "
            f"schema"
        ) from None


def _cuts(connection: Any, sizes: Sizes) -> list[datetime]:
    rows = max(1, connection.execute(_SIZE).fetchone()[0] // _ROW_BYTES)
    pieces = max(sizes.min_parts, math.ceil(rows / sizes.max_rows))
    if pieces == 1:
        return []
    share = min(100.0, 100.0 * pieces * _SAMPLES_A_CUT / rows)
    shares = [n / pieces for n in range(1, pieces)]
    found = connection.execute(_CUTS, [shares, share]).fetchone()[0]
    return sorted(set(found or ()))


def _meets(part: TimeRange, wanted: Wanted) -> bool:
    is_before = part.high is not None and wanted.since is not None and part.high <= wanted.since
    is_behind = part.low is not None and wanted.until is not None and part.low > wanted.until
    return not is_before and not is_behind


def _query(part: TimeRange, wanted: Wanted) -> tuple[str, list[Any]]:
    conditions: list[tuple[str, Any]] = [
        ("finished_at >= %s", part.low),
        ("finished_at < %s", part.high),
        ("finished_at >= %s", wanted.since),
        ("finished_at <= %s", wanted.until),
        ("kind = ANY(%s)", None if wanted.kinds is None else sorted(wanted.kinds)),
        ("status = ANY(%s)", None if wanted.statuses is None else sorted(wanted.statuses)),
    ]
    said = [(text, value) for text, value in conditions if value is not None]
    where = " AND ".join(text for text, _ in said) or "true"
    return f"SELECT task_id, result FROM penstock_results WHERE {where}", [value for _, value in said]  # noqa: S608  our own words
