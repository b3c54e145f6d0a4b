"""Delta Lake without jars: Spark writes the files, the driver commits them with the number of the batch.

Files of a batch lie in `<path>/batch-<batch>/<attempt>` and belong to the table only when its log says so. The log also
says which batch of which query and sink came last, in the same commit: a batch that is not above it is there already.
Of two drivers that commit the same batch the second is refused by Delta Lake itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from penstock.errors import PenstockError
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.files import FileInfo, Files, joined
from penstock.spark.pipeline.sinks import Delta
from penstock.spark.pipeline.writing.arrow_schema import nullable_arrow
from penstock.spark.pipeline.writing.counting import written
from penstock.spark.pipeline.writing.parquet import unknown_partitions, unwritable
from penstock.spark.pipeline.writing.refusal import Foldered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STACK = re.compile(r"\s+0: ")
_NULL = "__HIVE_DEFAULT_PARTITION__"


class DeltaMissing(PenstockError):
    """The library of Delta Lake is not installed."""


def _library() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise DeltaMissing(
            f"the sink delta needs deltalake, which cannot be imported ({error}): pip install 'penstock[delta]'"
        ) from error
    return deltalake


class DeltaWriter(Foldered):
    """Appends batches to a Delta table, which it makes if there is none."""

    is_atomic = True

    def __init__(self, sink: Delta, files: Files) -> None:
        self._sink, self._files = sink, files
        self.partition_by = sink.partition_by

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        library = _library()
        yield from unknown_partitions(self._sink.partition_by, schema)
        faults = list(unwritable(self._sink.path, self._files))
        yield from faults
        if faults:
            return
        try:
            if library.DeltaTable.is_deltatable(self._uri, self._options):
                yield from self._misfits(library.DeltaTable(self._uri, storage_options=self._options), schema)
        except Exception as error:  # of the store: there is no common class
            yield f"the table at {self._sink.path} cannot be read: {_line(error)}"

    def _misfits(self, table: Any, schema: StructType) -> Iterator[str]:
        library = _library()
        wanted = {field.name: _said(field) for field in library.Schema.from_arrow(nullable_arrow(schema)).fields}
        found = {field.name: _said(field) for field in table.schema().fields}
        for name, kind in wanted.items():
            if found.get(name) != kind:
                there = f"{found[name]} there" if name in found else "missing there"
                yield f"the table at {self._sink.path} has other columns: {name!r} is {kind} here and {there}"
        partitions = table.metadata().partition_columns
        if partitions != list(self._sink.partition_by):
            yield f"the table at {self._sink.path} is partitioned by {partitions}, not by partition_by"

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        transaction = (f"{key.query}.{self._sink.name}", key.number)
        if _has(self._table(rows.schema), transaction):
            return False
        batch = joined(self._sink.path, f"batch-{key.folder}")
        attempt = uuid4().hex[:8]
        place = joined(batch, attempt)
        # The log of a Delta table holds the values of partitions as texts, and times in UTC.
        count = written(rows, place, partition_by=self._sink.partition_by, zone="UTC")
        mark("delta written")
        is_new = not count or self._add(rows.schema, place, transaction)
        if count and is_new:
            self._tidy(batch, attempt)
        else:
            self._files.delete(place)
        mark("delta committed")
        return is_new

    def _add(self, schema: StructType, place: str, transaction: tuple[str, int]) -> bool:
        """Add the files to the table; tell whether it did not have the batch yet."""
        from deltalake.exceptions import CommitFailedError

        table = self._table(schema)
        if _has(table, transaction):
            return False  # another driver was faster, and has deleted our files
        folder = place.removeprefix(joined(self._sink.path, ""))
        try:
            self._commit(table, schema, self._files.walk(place), folder, transaction)
        except CommitFailedError:
            if not _has(self._table(schema), transaction):
                raise
            return False
        return True

    def _tidy(self, batch: str, attempt: str) -> None:
        """Delete the files of other attempts, which can no longer be added: the batch is there."""
        for name in self._files.names(batch):
            if name != attempt:
                self._files.delete(joined(batch, name))

    def _table(self, schema: StructType) -> Any:
        library = _library()
        made = library.Schema.from_arrow(nullable_arrow(schema))
        partitions = list(self._sink.partition_by)
        return library.DeltaTable.create(
            self._uri, schema=made, mode="ignore", partition_by=partitions, storage_options=self._options
        )

    def _commit(
        self, table: Any, schema: StructType, found: list[FileInfo], folder: str, transaction: tuple[str, int]
    ) -> None:
        from deltalake.transaction import AddAction

        library = _library()
        actions = [
            AddAction(
                path=f"{folder}/{file.path}",
                size=file.size,
                partition_values=partition_values(file.path),
                modification_time=file.modified_ms,
                data_change=True,
                stats="{}",
            )
            for file in found
            if file.path.endswith(".parquet")
        ]
        table.create_write_transaction(
            actions=actions,
            mode="append",
            schema=library.Schema.from_arrow(nullable_arrow(schema)),
            partition_by=list(self._sink.partition_by),
            commit_properties=library.CommitProperties(app_transactions=[library.Transaction(*transaction)]),
        )

    @property
    def _options(self) -> dict[str, str]:
        return dict(self._sink.options)

    @property
    def _uri(self) -> str:
        path = self._sink.path
        if "://" not in path and self._files.local(path) is None:
            path = self._files.qualified(path)  # where Spark writes the files, which is not here
        return path.replace("s3a://", "s3://", 1)


def _has(table: Any, transaction: tuple[str, int]) -> bool:
    """Tell whether the log of the table, as it was loaded, has this batch or a later one."""
    owner, number = transaction
    last = table.transaction_version(owner)
    return last is not None and last >= number


def _said(field: Any) -> str:
    return str(field.type.to_json()).strip('"')


def _line(error: BaseException) -> str:
    """Return what the library says, without the colours and the stack of Rust below it."""
    told = _COLOUR.sub("", str(error)).strip() or type(error).__name__
    return " ".join(_STACK.split(told)[0].split())


def partition_values(path: str) -> dict[str, str | None]:
    """Return the values that the folders of a file name, as in `day=2026-11-15/part-0.parquet`."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: None if value == _NULL else unquote(value) for name, _, value in pairs}
