"""Writes one file of entries and, before it is told of, reads it back: what is told is what is on the disk."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import ids
from penstock.spark.archive.digest import RowDigest
from penstock.spark.archive.durable import sync_file
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.layout import date_of, path_of
from penstock.spark.archive.manifest import FileEntry
from penstock.spark.archive.rows import SCHEMA

_GROUP_BYTES = 32 << 20  # of a row group, which is what a writer and a reader hold at a time
_PAGE_ROWS = 20_000
_BLOCK = 1 << 20


class FileWriter:
    """A file in the making. Rows come in the order of their ids, of one stream and one day."""

    def __init__(self, staging: Path, stream: str) -> None:
        self.staged = staging / f"{secrets.token_hex(8)}.parquet"
        self.stream = stream
        self._writer = pq.ParquetWriter(
            self.staged, SCHEMA, compression="zstd", use_dictionary=["stream", "key"], write_statistics=["ms", "seq"],
            write_page_checksum=True,
        )  # fmt: skip
        self._digest = RowDigest(SCHEMA)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self.first: str | None = None
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
        if self.first is None:
            self.first = begins
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

    def close(self) -> FileEntry:
        """End the file, make it durable, read it back, and return what is in it."""
        self._flush()
        self._writer.close()
        sync_file(self.staged)
        assert self.first is not None
        date = date_of(ids.parse(self.first)[0])
        entry = describe(self.staged, path_of(self.stream, date, self.first, self._last), self.stream, date)
        told = (self._digest.rows, self.first, self._last, self._digest.sum())
        if (entry.rows, entry.first, entry.last, entry.row_sum) != told:
            raise ArchiveDamaged(
                f"{self.staged}: {told[0]:,} entries from {told[1]} to {told[2]} were written, but {entry.rows:,} from "
                f"{entry.first} to {entry.last} are read back, or others; check the disk. Nothing was committed"
            )
        return entry

    def abandon(self) -> None:
        """Close the file and forget it."""
        self._writer.close()
        self.staged.unlink(missing_ok=True)


def describe(file: Path, path: str, stream: str, date: str) -> FileEntry:
    """Read a file from end to end and return what is in it."""
    digest = RowDigest(SCHEMA)
    first = last = ""
    for batch in read_batches(file):
        found = batch.column("id")
        first = first or found[0].as_py()
        last = found[-1].as_py()
        digest.add(batch)
    return FileEntry(path, stream, date, first, last, digest.rows, file.stat().st_size, checksum(file), digest.sum())


def read_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file, some at a time."""
    with pq.ParquetFile(file, page_checksum_verification=True) as source:
        for batch in source.iter_batches(_PAGE_ROWS, columns=SCHEMA.names, use_threads=False):
            yield batch if batch.schema.equals(SCHEMA) else batch.cast(SCHEMA)


def checksum(file: Path) -> str:
    """Return the SHA-256 of the bytes of a file."""
    found = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
