"""Which rows a table of PostgreSQL refuses: the database itself is asked, in a transaction that is rolled back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.spark.pipeline.origin import HIDDEN, Entry, Origin
from penstock.spark.pipeline.writing.bisection import bisected
from penstock.spark.pipeline.writing.local_rows import local_rows
from penstock.spark.pipeline.writing.refusal import Refusal, broken, time_rules, unbroken

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, Row

_AT_ONCE = 1_000
_IN_CONTEXT = re.compile(r"COPY .*?, line \d+, column ([^:]+):")
_MOST_SHOWN = 200


def refused_values(error: BaseException) -> bool:
    """Tell whether an error may be about the values of rows."""
    import psycopg

    return isinstance(error, psycopg.DataError | psycopg.IntegrityError | ValueError | OverflowError)


def refusals(
    rows: DataFrame,
    origin: Origin | None,
    connection: psycopg.Connection[Any],
    copy: Callable[[Sequence[Row]], None],
) -> Iterator[Refusal]:
    """Yield the rows that cannot be copied; `copy` does it, with rows that have a hidden origin at their end."""
    rules = list(time_rules(rows.schema))
    yield from broken(rows, rules, origin)

    def attempt(some: Sequence[Row]) -> Exception | None:
        try:
            with connection.transaction():  # a savepoint: those before it stay
                copy(some)
        except Exception as error:
            if not refused_values(error):
                raise
            return error
        return None

    connection.execute("SELECT 1")  # begins the transaction in which those are savepoints
    with local_rows(unbroken(rows, rules)) as found:
        while some := list(islice(found, _AT_ONCE)):
            for row, error in bisected(some, attempt):
                yield _told(row, origin, error)


def _told(row: Row, origin: Origin | None, error: Exception) -> Refusal:
    entry = None if origin is None else Entry.of(row[origin.stream], row[origin.id])
    values = {name: value for name, value in row.asDict().items() if name not in HIDDEN or entry is None}
    why = str(getattr(getattr(error, "diag", None), "message_primary", None) or error)
    return Refusal(entry, _column(error, values), " ".join(why.split()), str(values)[:_MOST_SHOWN])


def _column(error: Exception, values: dict[str, Any]) -> str | None:
    diag = getattr(error, "diag", None)
    if diag is not None and diag.column_name:
        return str(diag.column_name)
    found = _IN_CONTEXT.search(getattr(diag, "context", None) or "")
    if found:
        return found[1].strip('"')
    # What the driver refuses by itself: a text with NUL.
    return next((name for name, value in values.items() if isinstance(value, str) and "\0" in value), None)
