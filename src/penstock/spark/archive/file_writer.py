"""What a task of the archive does: sorts the rows of its partition into files, and reports them.

A partition of the source holds whole pieces of id ranges, each in order. A file never goes beyond a piece or a day, so
the files of one batch do not overlap, whichever task made them. Each file is read back before it is reported,
so what is reported is what is stored.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import ids
from penstock.spark.archive.file_reader import batches_of
from penstock.spark.archive.state import (
    DAY_MS,
    READ_SCHEMA,
    SCHEMA,
    ArchiveDamaged,
    FileEntry,
    day_of,
    is_behind,
    path_of,
    stored,
    unsigned,
)
from penstock.spark.lake.delta import statistics
from penstock.spark.lake.files import Location, Store
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.source.offsets import IdRange
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.redis_log import RedisLog, read_ranges
from penstock.spark.source.rows import LAST_MS, RowBuilder

_GROUP_BYTES = 32 << 20  # of a row group, which is what a writer and a reader hold at a time


@dataclass(frozen=True)
class StagedFile:
    """A file that is written and verified, and not yet part of the table."""

    entry: FileEntry
    stats: str


Copied: TypeAlias = StagedFile | IdRange  # a file, or ids whose entries were gone when they were to be read


class FileWriter:
    """A file in the making. Rows come in the order of their ids, of one stream and one day."""

    def __init__(self, store: Store, staging: str, stream: str) -> None:
        self._store, self._staging, self._file = store, staging, store.scratch(f"{staging}/new")
        self.stream = stream
        self._writer = pq.ParquetWriter(
            self._file, SCHEMA, compression="zstd", use_dictionary=["stream", "key"],
            write_statistics=["id", "ms", "seq", "timestamp"], write_page_checksum=True,
        )  # fmt: skip
        self._digest = RowDigest(SCHEMA)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._first: str | None = None
        self._last = ""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self._digest.rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in."""
        if not batch.num_rows:
            return
        begins = batch.column("id")[0].as_py()
        if self._first is None:
            self._first = begins
        elif ids.parse(begins) <= ids.parse(self._last):
            raise ArchiveDamaged(f"stream {self.stream!r}: entry {begins} came after {self._last}; nothing was kept")
        self._last = batch.column("id")[-1].as_py()
        self._digest.add(batch)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> StagedFile:
        """End the file, read it back, and stage it; return what is in it."""
        self._flush()
        self._writer.close()
        assert self._first is not None
        self._check()
        with self._file.open("rb") as source:
            sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        day = day_of(ids.parse(self._first)[0])
        path = path_of(self.stream, day, self._first, self._last, sha256)
        size = self._file.stat().st_size
        stats = statistics(pq.read_metadata(self._file), without=("stream",))
        self._store.put(self._file, f"{self._staging}/{path}")
        return StagedFile(FileEntry(path, self.stream, day, self._first, self._last, self.rows, size, sha256), stats)

    def _check(self) -> None:
        written = Content(self._digest.rows, self._first or "", self._last, self._digest.sum())
        found = Content.of(batches_of(self._file))
        if found != written:
            raise ArchiveDamaged(
                f"{self._file}: wrote {written.rows:,} entries from {written.first} to {written.last}, but read "
                f"back {found.rows:,} from {found.first} to {found.last}, or different ones; check the disk. "
                "Nothing was committed"
            )

    def abandon(self) -> None:
        """Close the file and forget it."""
        self._writer.close()
        self._file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Content:
    """What is in a file."""

    rows: int
    first: str
    last: str
    digest: str

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Content:
        """Go through the rows of a file."""
        digest = RowDigest(SCHEMA)
        first = last = ""
        for batch in batches:
            found = batch.column("id")
            first = first or found[0].as_py()
            last = found[-1].as_py()
            digest.add(batch)
        return cls(digest.rows, first, last, digest.sum())


class RowDigest:
    """Takes batches in; batches of any size give the same sum for the same rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [_Column(field.type) for field in schema]
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows in."""
        self.rows += batch.num_rows
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.add(array)

    def sum(self) -> str:
        """Return the checksum of all rows so far."""
        whole = hashlib.sha256(str(self.rows).encode())
        for column in self._columns:
            column.put(whole)
        return whole.hexdigest()


class _Column:
    """The sums of one column: of which values are not null, of their lengths, and of the values."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._valid, self._lengths, self._values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._inner = [_Column(kind.key_type), _Column(kind.item_type)] if pa.types.is_map(kind) else []

    def add(self, array: Any) -> None:
        valid = np.asarray(array.is_valid().cast(pa.uint8()))
        self._valid.update(valid.tobytes())
        if array.null_count:
            array = array.drop_null()  # the bytes under a null are undefined
        if pa.types.is_map(self._kind):
            offsets = np.asarray(array.offsets)
            self._lengths.update(np.diff(offsets).astype("<i4").tobytes())
            start, stop = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
            self._inner[0].add(array.keys.slice(start, stop - start))
            self._inner[1].add(array.items.slice(start, stop - start))
        elif pa.types.is_binary(self._kind) or pa.types.is_string(self._kind):
            self._text(array)
        else:
            self._values.update(np.asarray(array.cast(pa.int64())).astype("<i8").tobytes())

    def _text(self, array: Any) -> None:
        if not len(array):
            return
        _, offsets, values = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        self._lengths.update(np.diff(ends).astype("<i4").tobytes())
        if values is not None:
            self._values.update(memoryview(values)[int(ends[0]) : int(ends[-1])])

    def put(self, whole: Any) -> None:
        """Put the sums of the column into the sum of all."""
        for part in (self._valid, self._lengths, self._values):
            whole.update(part.digest())
        for inner in self._inner:
            inner.put(whole)


@dataclass(frozen=True)
class ArchiveTask:
    """Settings that are pickled into the tasks."""

    location: Location
    staging: str
    pieces: tuple[IdRange, ...]
    max_file_rows: int

    def copy(self, options: SourceOptions, ranges: Sequence[IdRange]) -> list[Copied]:
        """Read ranges of ids and write them, and return also what of them is gone; this is what an executor does."""
        freeze_gc()
        local = self.location.local
        if local is not None and not (local / self.staging).is_dir():
            raise ArchiveDamaged(
                f"{local / self.staging}, which the driver created, does not exist on {socket.gethostname()}: "
                "the driver and all executors must share the file system of the archive. Nothing was committed"
            )
        mine = replace(self, pieces=tuple(ranges))  # which may be cut finer than those of the batch
        lost: list[IdRange] = []
        made = mine.write(read_ranges(RedisLog(options), RowBuilder(READ_SCHEMA), ranges, lost.append))
        return [*made, *lost]

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
        self._partition: tuple[str, int, int] | None = None
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

    def _put(self, partition: tuple[str, int, int], batch: pa.RecordBatch) -> None:
        is_full = self._writer is not None and self._writer.rows >= self._max_rows
        if self._writer is None or partition != self._partition or is_full:
            self._finish()
            self._writer, self._partition = FileWriter(self._store, self._staging, partition[0]), partition
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
