"""Results in PostgreSQL: a task reads a range of times, along the index on `finished_at`."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from penstock.errors import BackendUnavailable, ConfigurationError, DecodeError
from penstock.results.extras import require
from penstock.spark.results.shelf import Sizes
from penstock.spark.results.wanted import Wanted
from penstock.task import Result, decode_result

logger = logging.getLogger("penstock.spark")
T = TypeVar("T")
_ROW_BYTES = 250  # of a small result; it need not be right
_SAMPLES_A_CUT = 200
_CHUNK = 1_000
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
        with closing(self._connect("plan a query of results")) as connection:
            cuts = self._guarded("plan a query of results", connection, lambda: _cuts(connection, sizes))
        ranges = [TimeRange(low, high) for low, high in itertools.pairwise([None, *cuts, None])]
        return [each for each in ranges if _meets(each, wanted)]

    def read(self, part: TimeRange, wanted: Wanted) -> Iterator[Sequence[Result]]:
        """Yield the results of a range, from a cursor in the server."""
        query, values = _query(part, wanted)
        with closing(self._connect("read results")) as connection:
            cursor = connection.cursor(name="penstock_results")
            self._guarded("read results", connection, lambda: cursor.execute(query, values, binary=True))
            while rows := self._guarded("read results", connection, lambda: cursor.fetchmany(_CHUNK)):
                yield [result for row in rows if (result := _result(*row)) is not None]

    def _connect(self, what: str) -> Any:
        require("psycopg", "postgres", "penstock_results")
        import psycopg

        from penstock.results.postgres_errors import translate
        from penstock.sync.results.postgres_link import PostgresLink

        link = PostgresLink(self.dsn, self.timeout_s)
        try:
            connection = link.connect()
        except psycopg.Error as error:
            raise translate(what, link.where, error) from error
        connection.autocommit = False  # a cursor in the server lives in a transaction
        return connection

    def _guarded(self, what: str, connection: Any, step: Callable[[], T]) -> T:
        import psycopg

        from penstock.results.postgres_errors import translate
        from penstock.sync.results.postgres_link import PostgresLink, hanging_up

        has_hung = threading.Event()
        where = PostgresLink(self.dsn, self.timeout_s).where
        try:
            with hanging_up(connection.fileno(), self.timeout_s, has_hung):
                return step()
        except psycopg.errors.UndefinedTable:
            raise ConfigurationError(
                f"there are no results in {where}: it has no table penstock_results; check the database and its schema"
            ) from None
        except psycopg.Error as error:
            if has_hung.is_set():
                raise BackendUnavailable(f"cannot {what} in {where}: no answer for {self.timeout_s} s") from error
            raise translate(what, where, error) from error


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


def _result(task_id: str, raw: bytes) -> Result | None:
    try:
        return decode_result(bytes(raw))
    except DecodeError as error:
        logger.warning("the row of task %s holds no valid result, and is skipped: %s", task_id, error)
        return None
