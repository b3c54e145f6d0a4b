"""The console: shows what comes, for looking and trying out. A batch that is repeated is shown again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.shown import shown_lines
from penstock.spark.lake.files import FailPoint
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.rejected_rows import visible
from penstock.spark.pipeline.sink_options import Console
from penstock.spark.pipeline.sinks.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class ConsoleWriter(Writer):
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
        # Not show(): of what a terminal would carry out, Spark leaves some as it is.
        table = visible(rows)._show_string(self._sink.rows, 40)  # type: ignore[operator]  # noqa: SLF001
        print(f"batch {key.number}\n{shown_lines(table)}")  # noqa: T201 - that is what it is for
        mark("console shown")
        return True
