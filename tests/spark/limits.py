"""What Spark 4.1 leaves no room for, and the tests of the rest: there a batch takes all that is there."""

from __future__ import annotations

from importlib.metadata import version

HAS_LIMITS = not version("pyspark").startswith("4.1.")
# Else a batch that a crash has left is all that Trigger.AvailableNow does: docs/explanation/spark.md.
AVAILABLE_NOW = {} if HAS_LIMITS else {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"}


def limit(rows: int) -> int | None:
    """Returns the limit of a batch, or None, for a test whose promise does not depend on the number of batches."""
    return rows if HAS_LIMITS else None
