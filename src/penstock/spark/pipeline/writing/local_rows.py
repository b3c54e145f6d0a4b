"""Rows one after the other in the driver, of which the rest may be left unread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


@contextmanager
def local_rows(rows: DataFrame) -> Iterator[Iterator[Row]]:
    """Fetch partition by partition, and tell Java at the end that no more is wanted: not whenever memory is tidied."""
    found: Any = rows.toLocalIterator()
    try:
        yield found
    finally:
        found.close()
