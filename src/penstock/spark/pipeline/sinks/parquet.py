"""Parquet: a batch is written into a hidden folder, and published by one rename.

Each attempt writes to its own folder `<path>/_penstock/<batch>.<attempt>`, so that tasks left by a killed driver do no
harm. `<path>/batch=<batch>` is a complete batch and is not written again; a batch without rows has no folder. Readers
of Parquet skip names that begin with an underscore, and read `batch=...` as a column. In an object store, where a
rename copies file by file, `<path>/_complete/batch=<batch>` marks a batch as complete; without it, the batch is
written again. On a local disk, files are synced before the rename, and the rename before the batch counts as written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.spark.lake.files import FailPoint
from penstock.spark.lake.parquet import written
from penstock.spark.pipeline.files import BatchKey, Files, attempt_of, joined, tidy
from penstock.spark.pipeline.rejected_rows import visible, visible_schema
from penstock.spark.pipeline.sink_options import Parquet
from penstock.spark.pipeline.sinks.writer import FileSink, unwritable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

COLUMN = "batch"
_HIDDEN = "_penstock"


class ParquetWriter(FileSink):
    """Writes batches as folders of Parquet files."""

    is_atomic = True

    def __init__(self, sink: Parquet, files: Files) -> None:
        super().__init__(sink)
        self._sink, self._files = sink, files

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        schema = visible_schema(schema)
        names = schema.names
        faults = list(self.partitions.problems(schema))
        yield from faults
        if self.partitions.each and set(names) <= set(self.partitions.names):
            yield "partition_by: at least one column must not be a partition column"
        for name in names:
            if name.lower() == COLUMN:
                yield f"column {name!r} conflicts with the name of the batch folders: rename it"
        unreachable = list(unwritable(self._sink.path, self._files))
        yield from unreachable
        if not faults and not unreachable:
            yield from self._misfits(self.partitions.schema(schema))

    def _misfits(self, schema: StructType) -> Iterator[str]:
        """Compare with the newest batch: readers expect all batches to have the columns of one."""
        batches = sorted(name for name in self._files.names(self._sink.path) if name.startswith(f"{COLUMN}="))
        folders = (joined(self._sink.path, name) for name in reversed(batches))
        newest = next(filter(self._files.is_shown, folders), None)  # an incomplete batch does not count
        if newest is None:
            return
        columns = self._files.parquet_schema(newest).fields
        found = {field.name.lower(): field.dataType.simpleString() for field in columns}
        for field in schema.fields:
            kind, there = field.dataType.simpleString(), found.get(field.name.lower(), "missing")
            if there == "missing" and self._sink.evolve and field.name not in self.partitions.names:
                continue
            # Readers guess the types of partition columns.
            if there == "missing" or (there != kind and field.name not in self.partitions.names):
                yield (
                    f"the table at {self._sink.path} has different columns: {field.name!r} is {kind} in the "
                    f"rows and {there} in the table: write to another path"
                )

    def has(self, key: BatchKey) -> bool:
        """Return whether the batch is complete."""
        return self._files.is_shown(self._shown(key))

    def _shown(self, key: BatchKey) -> str:
        return joined(self._sink.path, f"{COLUMN}={key.folder}")

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless it exists; return whether it was new."""
        rows = self.partitions.added(visible(rows))
        path, files = self._sink.path, self._files
        hidden, shown = joined(path, _HIDDEN, attempt_of(key)), self._shown(key)
        if files.is_shown(shown):
            files.sync(shown)  # a driver may have been killed after the rename
            tidy(files, joined(path, _HIDDEN), key)
            return False
        files.create(path)
        files.hide(shown)
        count = written(
            rows, hidden, files.walk, partition_by=self.partitions.names, compression=self._sink.compression
        )
        mark("parquet written")
        is_new = not count or self._show(hidden, shown)
        tidy(files, joined(path, _HIDDEN), key)
        mark("parquet shown")
        return is_new

    def _show(self, hidden: str, shown: str) -> bool:
        """Publish the batch; return whether it was new."""
        self._files.sync(hidden)
        try:
            self._files.show(hidden, shown)
        except FileExistsError:
            if not self._files.is_shown(shown):
                raise
            return False  # another driver was faster
        self._files.sync(shown)
        return True
