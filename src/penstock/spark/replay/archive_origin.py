"""Messages that are replayed out of an archive, while it may be compacted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock import ids
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.file_reader import FileChecks, read_rows
from penstock.spark.archive.read import chosen, cold_frame, files_between
from penstock.spark.archive.rows import SCHEMA, between
from penstock.spark.archive.state import FileEntry
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location
from penstock.spark.replay.origins import Span
from penstock.spark.replay.where import Where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPARK_ROWS = 500_000  # rows of files that Spark reads, filters and sorts at a time


class ArchiveOrigin:
    """Entries of an archived stream, up to the last one that is archived when this is made."""

    schema = SCHEMA

    def __init__(self, root: str | Path | Location, stream: str, span: Span) -> None:
        self._table, self._stream, self._span = ArchiveTable.of(root), stream, span
        chosen(self._table.load(), stream, is_hot=False)
        self._checks = FileChecks(self._table)
        self._files = self._named()
        self._upto = self._files[-1].last if self._files else ids.ZERO
        self.name = f"archive {self._table.location}, stream {stream!r}, {span}"

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return the entries in the order of their ids.

        Guarantees: no row of a file whose bytes are not those that were written.

        Raises: ArchiveDamaged for a file that is missing, changed or cannot be read.
        """
        after = ids.ZERO
        while True:
            files = [entry for entry in self._files if ids.parse(entry.last) > ids.parse(after)]
            try:
                for batch in self._batches(where, files):
                    kept = between(batch, after, self._upto)
                    if kept.num_rows:
                        yield kept
                        after = kept.column("id")[-1].as_py()
            except FileNotFoundError as error:
                files, self._files = self._files, self._named()
                if files == self._files:  # else a compaction has replaced and cleaned it meanwhile
                    raise ArchiveDamaged(
                        f"{error.filename or error} is missing; run `penstock archive verify`"
                    ) from None
            else:
                return

    def _named(self) -> list[FileEntry]:
        return files_between(self._table.load(), [self._stream], self._span.low, self._span.high)

    def _batches(self, where: Where | None, files: list[FileEntry]) -> Iterator[pa.RecordBatch]:
        if where is None:
            for entry in files:
                self._checks.check(entry)
                for batch in read_rows(self._table, entry):
                    yield self._span.within(batch)
            return
        for group in _groups(files):
            for entry in group:
                self._checks.check(entry)  # also that it is there, which Spark would say in its own way
            yield from where.sorted(self._frame(where, group))

    def _frame(self, where: Where, files: list[FileEntry]) -> DataFrame:
        return cold_frame(where.spark, self._table, files).where(self._span.sql)


def _groups(files: list[FileEntry]) -> Iterator[list[FileEntry]]:
    group: list[FileEntry] = []
    for entry in files:
        if group and sum(each.rows for each in group) + entry.rows > _SPARK_ROWS:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
