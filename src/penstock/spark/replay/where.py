"""A filter in SQL, which Spark applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Where:
    """A condition over the columns of an origin."""

    def __init__(self, condition: str, schema: pa.Schema, start: Callable[[], SparkSession]) -> None:
        self.spark = start()
        self.condition, self._schema = condition, schema
        with self._told():
            self.spark.createDataFrame(schema.empty_table()).where(condition)  # classic Spark looks at it at once

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell in one line what is wrong with the condition, or with what it makes of a message."""
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger

        logger = PySparkLogger.getLogger("SQLQueryContextLogger")  # it prints what Java said, pages of it
        was_disabled, logger.disabled = logger.disabled, True
        try:
            yield
        except PySparkException as error:
            told = " ".join(str(error).partition("SQLSTATE")[0].split())  # behind it come the plan and Java's words
            raise ConfigurationError(f"--where {self.condition!r}: {told}") from None
        finally:
            logger.disabled = was_disabled

    def kept(self, table: pa.Table) -> list[pa.RecordBatch]:
        """Return the rows that it lets through, in their order."""
        if not table.num_rows:
            return []
        return self._collected(self.spark.createDataFrame(table).where(self.condition))

    def sorted(self, rows: DataFrame) -> list[pa.RecordBatch]:
        """Return the rows that it lets through, in the order of their ids."""
        return self._collected(rows.where(self.condition).orderBy("ms", "seq"))

    def _collected(self, rows: DataFrame) -> list[pa.RecordBatch]:
        with self._told():
            batches: list[pa.RecordBatch] = rows.toArrow().cast(self._schema).to_batches()
        return batches
