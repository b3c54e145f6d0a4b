"""What a task of the archive does: sorts the rows of its partition into files, and tells of them.

A partition of the source holds whole pieces of id ranges, each in order. A file never goes beyond a piece or a day, so
the files of one batch do not overlap, whichever task made them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.file_writer import FileWriter, StagedFile
from penstock.spark.archive.rows import READ_SCHEMA, is_behind, stored, unsigned
from penstock.spark.archive.state import DAY_MS, LAST_MS
from penstock.spark.lake.files import Location, Store
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.source.offsets import IdRange
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.redis_log import read_ranges
from penstock.spark.source.rows import RowBuilder


@dataclass(frozen=True)
class ArchiveTask:
    """Settings that travel to the tasks."""

    location: Location
    staging: str
    pieces: tuple[IdRange, ...]
    max_file_rows: int

    def copy(self, options: SourceOptions, ranges: Sequence[IdRange]) -> list[StagedFile]:
        """Read ranges of ids and write them; this is what an executor does."""
        freeze_gc()
        local = self.location.local
        if local is not None and not (local / self.staging).is_dir():
            raise ArchiveDamaged(
                f"{local / self.staging}, which the driver has made, is not there on {socket.gethostname()}: the "
                "driver and all executors must share the file system of the archive. Nothing was committed"
            )
        return self.write(read_ranges(options, RowBuilder(READ_SCHEMA), ranges))

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Write rows as the source gives them."""
        sorter = _Sorter(self.location.store, self.staging, self.pieces, self.max_file_rows)
        try:
            for batch in batches:
                sorter.take(batch)
            return sorter.close()
        except BaseException:
            sorter.abandon()
            raise


class _Sorter:
    """Puts rows into the file of their piece and day; one file is open at a time."""

    def __init__(self, store: Store, staging: str, pieces: Sequence[IdRange], max_rows: int) -> None:
        self._store, self._staging, self._max_rows = store, staging, max_rows
        self._pieces: dict[str, list[IdRange]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.stream, []).append(piece)
        self._writer: FileWriter | None = None
        self._place: tuple[str, int, int] | None = None
        self._made: list[StagedFile] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows of any streams."""
        if not batch.num_rows:
            return
        names = batch.column("stream").to_pylist()
        ends = [n for n in range(1, len(names)) if names[n] != names[n - 1]] + [len(names)]
        start = 0
        for end in ends:
            self._take_stream(names[start], batch.slice(start, end - start))
            start = end

    def _take_stream(self, stream: str, batch: pa.RecordBatch) -> None:
        ms, seq = unsigned(batch.column("ms")), unsigned(batch.column("seq"))
        numbers = np.full(len(ms), -1, np.int64)  # of the piece; -1 = not wanted, because it is archived already
        for number, piece in enumerate(self._pieces.get(stream, ())):
            numbers[is_behind(ms, seq, piece.after) & ~is_behind(ms, seq, piece.upto)] = number
        days = np.minimum(ms, np.uint64(LAST_MS)) // np.uint64(DAY_MS)
        changes = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(days) != 0)) + 1
        start = 0
        for end in [*changes.tolist(), len(ms)]:
            if numbers[start] >= 0:
                self._put((stream, int(numbers[start]), int(days[start])), batch.slice(start, end - start))
            start = end

    def _put(self, place: tuple[str, int, int], batch: pa.RecordBatch) -> None:
        is_full = self._writer is not None and self._writer.rows >= self._max_rows
        if self._writer is None or place != self._place or is_full:
            self._finish()
            self._writer, self._place = FileWriter(self._store, self._staging, place[0]), place
        self._writer.add(stored(batch))

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._made.append(writer.close())

    def close(self) -> list[StagedFile]:
        """End the last file; return all."""
        self._finish()
        return self._made

    def abandon(self) -> None:
        """Forget the file that is open."""
        if self._writer is not None:
            self._writer.abandon()
