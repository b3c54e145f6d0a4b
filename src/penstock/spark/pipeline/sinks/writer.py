"""What every sink can do, whatever it writes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from penstock.spark.pipeline.batch_key import BatchKey, FailPoint
from penstock.spark.pipeline.sinks.refusal import Choosy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Writer(Choosy, Protocol):
    """Writes the batches of a pipeline to one sink."""

    is_atomic: bool
    """Whether a batch becomes visible in one step, so that a repetition may bring other rows."""

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""

    def has(self, key: BatchKey) -> bool:
        """Tell whether the batch is there; of one that is not shown in one step, whether a part of it may be."""

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
