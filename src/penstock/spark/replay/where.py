"""A filter in SQL, which Spark applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.runtime.errors import filtered, one_line_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Where:
    """A condition over the columns of an origin."""

    def __init__(self, condition: str, schema: pa.Schema, start: Callable[[], SparkSession]) -> None:
        self.spark = start()
        self.condition, self._schema = condition, schema
        filtered(self.spark.createDataFrame(schema.empty_table()), condition)  # classic Spark looks at it at once

    def kept(self, table: pa.Table) -> list[pa.RecordBatch]:
        """Return the rows that it lets through, in their order."""
        if not table.num_rows:
            return []
        return self._collected(self.spark.createDataFrame(table).where(self.condition))

    def sorted(self, rows: DataFrame) -> list[pa.RecordBatch]:
        """Return the rows that it lets through, in the order of their ids."""
        return self._collected(rows.where(self.condition).orderBy("ms", "seq"))

    def _collected(self, rows: DataFrame) -> list[pa.RecordBatch]:
        with one_line_errors(self.condition):
            batches: list[pa.RecordBatch] = rows.toArrow().cast(self._schema).to_batches()
        return batches
