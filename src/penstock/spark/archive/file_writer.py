"""Writes one file of entries and, before anybody hears of it, reads it back: what is reported is what is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import ids
from penstock.spark.archive.digest import RowDigest
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.file_reader import batches_of
from penstock.spark.archive.rows import SCHEMA
from penstock.spark.archive.state import FileEntry, day_of, path_of
from penstock.spark.lake.files import Store
from penstock.spark.lake.statistics import statistics

_GROUP_BYTES = 32 << 20  # of a row group, which is what a writer and a reader hold at a time


@dataclass(frozen=True)
class StagedFile:
    """A file that is written and verified, and not yet part of the table."""

    entry: FileEntry
    stats: str


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
            raise ArchiveDamaged(f"stream {self.stream!r}: entry {begins} came behind {self._last}; nothing was kept")
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
                f"{self._file}: {written.rows:,} entries from {written.first} to {written.last} were written, but "
                f"{found.rows:,} from {found.first} to {found.last} are read back, or others; check the disk. Nothing "
                "was committed"
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
