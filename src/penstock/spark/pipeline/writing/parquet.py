"""Parquet: a batch is written into a hidden folder, and one rename shows it.

`<path>/_penstock/<batch>.<attempt>` is being written, by one driver alone, so that tasks which a killed one has left
behind harm no other; `<path>/batch=<batch>` is there, and complete. Readers of Parquet skip
names that begin with an underscore and take `batch=...` for a column. A batch that is there is not written again. One
without rows is not there at all. In an object store, where a rename copies file by file, a batch is complete when
`<path>/_complete/batch=<batch>` says so; without that it is written again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.pipeline.attempts import attempt_of, tidy
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.files import Files, joined, local_path
from penstock.spark.pipeline.sinks import Parquet
from penstock.spark.pipeline.writing.counting import written
from penstock.spark.pipeline.writing.refusal import Foldered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

COLUMN = "batch"
_HIDDEN = "_penstock"
_NO_FOLDERS = ("binary", "struct", "map", "array", "variant")


class ParquetWriter(Foldered):
    """Writes batches as folders of Parquet files."""

    is_atomic = True

    def __init__(self, sink: Parquet, files: Files) -> None:
        self._sink, self._files = sink, files
        self.partition_by = sink.partition_by

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        names = schema.names
        yield from unknown_partitions(self._sink.partition_by, schema)
        if self._sink.partition_by and set(names) <= set(self._sink.partition_by):
            yield "partition_by: at least one column must be left for the files"
        for name in names:
            if name.lower() == COLUMN:
                yield f"there is a column {name!r}, which the folders are named after: rename it"
        faults = list(unwritable(self._sink.path, self._files))
        yield from faults or self._misfits(schema)

    def _misfits(self, schema: StructType) -> Iterator[str]:
        """Compare with the newest batch: a reader takes the columns of one for those of all."""
        batches = sorted(name for name in self._files.names(self._sink.path) if name.startswith(f"{COLUMN}="))
        places = (joined(self._sink.path, name) for name in reversed(batches))
        newest = next(filter(self._files.is_shown, places), None)  # a torn one says nothing
        if newest is None:
            return
        columns = self._files.parquet_schema(newest).fields
        found = {field.name.lower(): field.dataType.simpleString() for field in columns}
        for field in schema.fields:
            kind, there = field.dataType.simpleString(), found.get(field.name.lower(), "missing")
            # Of a column in the names of folders a reader guesses the type.
            if there == "missing" or (there != kind and field.name not in self._sink.partition_by):
                yield (
                    f"the table at {self._sink.path} has other columns: {field.name!r} is {kind} here and {there} "
                    "there: write to another path"
                )

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        path, files = self._sink.path, self._files
        hidden, shown = joined(path, _HIDDEN, attempt_of(key)), joined(path, f"{COLUMN}={key.folder}")
        if files.is_shown(shown):
            tidy(files, joined(path, _HIDDEN), key)
            return False
        files.hide(shown)
        count = written(rows, hidden, partition_by=self._sink.partition_by, compression=self._sink.compression)
        mark("parquet written")
        is_new = not count or self._show(hidden, shown)
        tidy(files, joined(path, _HIDDEN), key)
        mark("parquet shown")
        return is_new

    def _show(self, hidden: str, shown: str) -> bool:
        """Move the batch to its place; tell whether it was not there yet."""
        try:
            self._files.show(hidden, shown)
        except FileExistsError:
            if not self._files.is_shown(shown):
                raise
            return False  # another driver was faster
        return True


def unknown_partitions(partition_by: Sequence[str], schema: StructType) -> Iterator[str]:
    """Yield the columns that a table is to be partitioned by and cannot be."""
    types = {field.name: field.dataType for field in schema.fields}
    for name in dict.fromkeys(partition_by):
        if name not in types:
            yield f"partition_by: there is no column {name!r}; there are {', '.join(schema.names)}"
        elif types[name].typeName() in _NO_FOLDERS:
            yield f"partition_by: no folders can be named after {name!r}, which is {types[name].simpleString()}"
        if list(partition_by).count(name) > 1:
            yield f"partition_by names {name!r} twice"


def unfit(schema: StructType) -> Iterator[str]:
    """Yield what keeps rows out of Parquet files, and so out of all sinks."""
    seen: set[str] = set()
    for field in schema.fields:
        if field.name.lower() in seen:
            yield f"there are two columns {field.name!r}, for capitals do not count: rename one"
        seen.add(field.name.lower())
        if what := _why_unfit(field.dataType):
            yield f"column {field.name!r} is {field.dataType.simpleString()}, {what}"


def _why_unfit(kind: DataType) -> str | None:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
        if not inner:
            return "which is empty, and Parquet cannot hold it: leave it out"
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, NullType) or "interval" in kind.simpleString():
        return "which Parquet cannot hold: cast it"
    return next(filter(None, map(_why_unfit, inner)), None)


def unwritable(path: str, files: Files | None = None) -> Iterator[str]:
    """Yield why nothing can be written below a path: on this machine, or elsewhere if it cannot be reached at all."""
    place = local_path(path) if files is None else files.local(path)
    if place is None:
        if files is not None and (why := files.why_unreachable(path)):
            yield f"{path} cannot be reached: {why}"
        return
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
    except OSError as error:  # a name that is too long
        yield f"{path} cannot be written to: {error.strerror}"
        return
    if not place.is_dir():
        yield f"{path} cannot be written to: {place} is no folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        yield f"{path} cannot be written to: no permission for {place}"
    elif why := _why_not_in(place):
        yield f"{path} cannot be written to: nothing can be made in {place} ({why})"


def _why_not_in(folder: Path) -> str | None:
    try:
        Path(tempfile.mkdtemp(prefix=".penstock-", dir=folder)).rmdir()  # to the superuser, rights alone do not tell it
    except OSError as error:
        return error.strerror or str(error)
    return None
