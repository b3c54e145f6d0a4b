"""Iceberg without jars: Spark writes the files, the driver adds them to the table with the number of the batch.

Files of a batch lie in `<table>/data/batch-<batch>/<attempt>` and belong to the table only when a snapshot says so. The
same commit notes the batch in the properties of the table: a batch that is not above the last one is there already.
Each attempt has a folder of its own, so that it touches no file of another driver's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.files import Files, joined
from penstock.spark.pipeline.origin import Origin
from penstock.spark.pipeline.sinks import Iceberg
from penstock.spark.pipeline.writing.arrow_schema import nullable_arrow
from penstock.spark.pipeline.writing.counting import written
from penstock.spark.pipeline.writing.iceberg_note import BatchNote
from penstock.spark.pipeline.writing.iceberg_table import IcebergTable, for_hadoop
from penstock.spark.pipeline.writing.parquet import unknown_partitions
from penstock.spark.pipeline.writing.refusal import Refusals, Rule, broken, folder_rules, is_of_spark, time_rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FOLDER = "_penstock_partition_"


class IcebergWriter:
    """Appends batches to an Iceberg table, which it makes if there is none."""

    is_atomic = True

    def __init__(self, sink: Iceberg, files: Files) -> None:
        self._sink, self._files = sink, files
        self._table = IcebergTable(sink)

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        yield from unknown_partitions(self._sink.partition_by, schema)
        yield from self._table.problems(nullable_arrow(schema))

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        note = BatchNote(key, self._sink.name)
        self._table.open(nullable_arrow(rows.schema))
        if self._table.has(note):
            return False
        batch, attempt = joined(self._table.location, "data", f"batch-{key.folder}"), uuid4().hex[:8]
        folder = joined(batch, attempt)
        place = for_hadoop(folder)
        count = written(self._foldered(rows), place, partition_by=self._folders)
        mark("iceberg written")
        is_new = True
        if not count:
            self._files.delete(place)
        else:
            found = [file.path for file in self._files.walk(place) if file.path.endswith(".parquet")]
            is_new = self._table.add([joined(folder, path) for path in found], note)
            if is_new:
                self._tidy(for_hadoop(batch), attempt)
        mark("iceberg committed")
        return is_new

    def _tidy(self, batch: str, attempt: str) -> None:
        """Delete the files of other attempts, which can no longer be added: the batch is there."""
        for name in self._files.names(batch):
            if name != attempt:
                self._files.delete(joined(batch, name))

    def is_refusal(self, error: BaseException) -> bool:
        """Tell whether a write may have failed for a value in a row: PyIceberg reads the bounds of each column."""
        return isinstance(error, OverflowError | ValueError) or (bool(self._sink.partition_by) and is_of_spark(error))

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the sink does not take, and write nothing."""
        floats = {field.name for field in rows.schema.fields if field.dataType.typeName() in ("float", "double")}
        nan = [Rule(name, f"isnan(`{name}`)", "is NaN, which PyIceberg takes for no partition")
               for name in self._sink.partition_by if name in floats]  # fmt: skip
        rules = [*folder_rules(self._sink.partition_by), *nan, *time_rules(rows.schema)]
        yield from broken(rows, rules, origin)

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(f"{_FOLDER}{name}" for name in self._sink.partition_by)

    def _foldered(self, rows: DataFrame) -> DataFrame:
        # Spark takes the columns that it makes folders of out of the files, where Iceberg looks for them.
        copies: dict[str, Any] = {f"{_FOLDER}{name}": rows[name] for name in self._sink.partition_by}
        return rows.withColumns(copies) if copies else rows
