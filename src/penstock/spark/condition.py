"""What is wrong with a condition that a user wrote, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.spark.master import is_connect
from penstock.spark.query_log import without_query_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def told(condition: str) -> Iterator[None]:
    """Raise ConfigurationError for what Spark finds wrong with `--where`, or with what it makes of a message."""
    from pyspark.errors import PySparkException

    try:
        with without_query_log():
            yield
    except PySparkException as error:
        text = " ".join(str(error).partition("SQLSTATE")[0].split())  # behind it come the plan and Java's words
        raise ConfigurationError(f"--where {condition!r}: {text}") from None


def filtered(rows: DataFrame, condition: str) -> DataFrame:
    """Return the rows for which a condition is true; raise ConfigurationError for one that cannot be."""
    with told(condition):
        found = rows.where(condition)
        _ = found.schema  # Spark Connect looks at the condition only now
        if not is_connect(rows.sparkSession) and not _analyzed(found).deterministic():
            raise ConfigurationError(
                f"--where {condition!r} chooses other messages each time it is asked: leave out rand(), uuid() and such"
            )
    return found


def _analyzed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows a plan only by printing it
