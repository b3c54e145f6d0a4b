"""The console: prints rows while you develop a pipeline. A repeated batch is printed again."""

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

    # Printing computes no more rows than it prints: the others would skip their handler, dead letters and state. So a
    # batch is staged first.
    is_atomic = False

    def __init__(self, sink: Console) -> None:
        self._sink = sink

    def problems(self, schema: StructType) -> Iterator[str]:  # noqa: ARG002
        """Yield nothing: all rows can be printed."""
        yield from ()

    def has(self, key: BatchKey) -> bool:  # noqa: ARG002
        """Return False: a batch may be printed again."""
        return False

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Print a batch."""
        # Not show(): Spark does not escape all control sequences of terminals.
        table = visible(rows)._show_string(self._sink.rows, 40)  # type: ignore[operator]  # noqa: SLF001
        print(f"batch {key.number}\n{shown_lines(table)}")  # noqa: T201 - its purpose
        mark("console shown")
        return True
