"""The console: shows what comes, for looking and trying out. A batch that is repeated is shown again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.spark.pipeline.batch_key import BatchKey, FailPoint
from penstock.spark.pipeline.origin import Origin, visible
from penstock.spark.pipeline.sink_options import Console
from penstock.spark.pipeline.sinks.refusal import Refusals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class ConsoleWriter:
    """Prints the first rows of each batch."""

    # Showing computes no more rows than it shows: the others would never meet their handler, their dead letters or the
    # state that they are counted in. So a batch is staged first.
    is_atomic = False

    def __init__(self, sink: Console) -> None:
        self._sink = sink

    def problems(self, schema: StructType) -> Iterator[str]:  # noqa: ARG002
        """Yield nothing: everything can be shown."""
        yield from ()

    def has(self, key: BatchKey) -> bool:  # noqa: ARG002
        """Say no: what was shown may be shown again."""
        return False

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Show a batch."""
        print(f"batch {key.number}")  # noqa: T201 - that is what it is for
        visible(rows).show(self._sink.rows, truncate=40)
        mark("console shown")
        return True

    def is_refusal(self, error: BaseException) -> bool:  # noqa: ARG002
        """Say no: everything can be shown."""
        return False

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:  # noqa: ARG002
        """Yield nothing."""
        yield from ()
