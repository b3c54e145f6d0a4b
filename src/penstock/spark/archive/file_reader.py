"""Reads files of the archive, as rows or as entries as the server would send them, and checks that they are whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import envelope, ids
from penstock.spark.archive.state import SCHEMA, ArchiveDamaged, FileEntry, between, is_behind, unsigned
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.master import enough_tasks
from penstock.spark.source.rows import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE_ROWS = 5_000
_BATCH_ROWS = 20_000
_ALL = ["id", "ms", "seq", "data", "fields"]
_IDS = ["id", "ms", "seq"]
_WANTED = "path string, bytes bigint, sha256 string"
_FOUND = pa.schema([("path", pa.string()), ("why", pa.string())])
_FOUND_DDL = "path string, why string"


# --- rows ---


def batches_of(source: Any) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file, some at a time."""
    with pq.ParquetFile(source, page_checksum_verification=True) as opened:
        for batch in opened.iter_batches(_BATCH_ROWS, columns=SCHEMA.names, use_threads=False):
            yield batch if batch.schema.equals(SCHEMA) else batch.cast(SCHEMA)


def read_rows(table: ArchiveTable, entry: FileEntry) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file; raise ArchiveDamaged if it cannot be read, FileNotFoundError if it is missing."""
    table.check(entry.path)
    try:
        yield from batches_of(table.store.opened(entry.path))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:  # a page whose checksum is wrong is an OSError
        raise _unreadable(table, entry, error) from None


# --- entries ---


def read_entries(
    table: ArchiveTable, entry: FileEntry, after: str, upto: str, *, ids_only: bool = False
) -> Iterator[list[Entry]]:
    """Return the entries after an id, up to and with another one; with `ids_only` they have no fields."""
    with _opened(table, entry) as source:
        groups = [n for n in range(source.num_row_groups) if _may_hold(source, n, after, upto)]
        columns = _IDS if ids_only else _ALL
        try:
            for batch in source.iter_batches(_PAGE_ROWS, row_groups=groups, columns=columns, use_threads=False):
                kept = between(batch, after, upto)
                if kept.num_rows:
                    yield _ids(kept) if ids_only else _entries(kept)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(table, entry, error) from None


def count_upto(table: ArchiveTable, entry: FileEntry, upto: str) -> int:
    """Return how many entries of a file are at or before an id."""
    found = 0
    with _opened(table, entry) as source:
        for batch in source.iter_batches(_PAGE_ROWS, columns=["ms", "seq"], use_threads=False):
            ms, seq = unsigned(batch.column("ms")), unsigned(batch.column("seq"))
            found += int(np.count_nonzero(~is_behind(ms, seq, upto)))
    return found


def group_ends(table: ArchiveTable, entry: FileEntry) -> list[tuple[str, int]]:
    """Return for each row group of a file an id that ends it, and its rows; the next one may begin in it."""
    with _opened(table, entry) as source:
        rows = [source.metadata.row_group(n).num_rows for n in range(source.num_row_groups)]
        firsts = [_ms(source, n).min for n in range(1, source.num_row_groups)]
    if any(ms < 0 for ms in firsts):
        return [(entry.last, entry.rows)]
    ends = [ids.before(f"{ms}-0") for ms in firsts]
    return list(zip([*ends, entry.last], rows, strict=True))


def _opened(table: ArchiveTable, entry: FileEntry) -> pq.ParquetFile:
    table.check(entry.path)
    try:
        source = pq.ParquetFile(table.store.opened(entry.path), page_checksum_verification=True)
    except pa.ArrowException as error:
        raise _unreadable(table, entry, error) from None
    if source.metadata.num_rows != entry.rows:
        raise ArchiveDamaged(
            f"{table.location}/{entry.path} has {source.metadata.num_rows:,} entries, but the log says "
            f"{entry.rows:,}; run `penstock archive verify`"
        )
    return source


def _unreadable(table: ArchiveTable, entry: FileEntry, error: Exception) -> ArchiveDamaged:
    return ArchiveDamaged(f"cannot read {table.location}/{entry.path} ({error}); run `penstock archive verify`")


def _ms(source: pq.ParquetFile, group: int) -> Any:
    return source.metadata.row_group(group).column(source.schema_arrow.get_field_index("ms")).statistics


def _may_hold(source: pq.ParquetFile, group: int, after: str, upto: str) -> bool:
    found = _ms(source, group)
    if found.min < 0:
        return True  # numbers that have wrapped: their order is not that of the ids
    return bool(found.max >= ids.parse(after)[0] and found.min <= ids.parse(upto)[0])


def _ids(batch: pa.RecordBatch) -> list[Entry]:
    return [(entry_id, []) for entry_id in batch.column("id").cast(pa.binary()).to_pylist()]


def _entries(batch: pa.RecordBatch) -> list[Entry]:
    entry_ids = batch.column("id").cast(pa.binary()).to_pylist()
    payloads = batch.column("data").to_pylist()
    rest = batch.column("fields")
    offsets = np.asarray(rest.offsets)
    start, stop = int(offsets[0]), int(offsets[-1])
    flat = [b""] * (2 * (stop - start))
    flat[::2] = map(envelope.field_bytes, rest.keys.slice(start, stop - start).to_pylist())
    flat[1::2] = rest.items.slice(start, stop - start).to_pylist()
    ends = ((offsets - start) * 2).tolist()
    return [
        (entry_id, [*(() if data is None else (b"data", data)), *flat[low:high]])
        for entry_id, data, low, high in zip(entry_ids, payloads, ends, ends[1:], strict=False)
    ]


# --- whether a file is what was written ---


def checksum(table: ArchiveTable, path: str) -> str:
    """Return the SHA-256 of the bytes of a file."""
    found = hashlib.sha256()
    for block in table.store.blocks(path):
        found.update(block)
    return found.hexdigest()


def why_changed(table: ArchiveTable, path: str, size: int, sha256: str) -> str | None:
    """Return how a file differs from what was written, None if it does not; raise OSError if it cannot be read."""
    table.check(path)
    found = table.store.info(path).size
    if found != size:
        return f"it has {found:,} bytes instead of {size:,}"
    if checksum(table, path) != sha256:
        return "its checksum does not match"
    return None


class FileChecks:
    """Checks each file once, as long as it does not change: a replay reads its files twice."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table = table
        self._seen: dict[str, object] = {}

    def check(self, entry: FileEntry) -> None:
        """Raise ArchiveDamaged if a file is not what was written, and FileNotFoundError if it is not there."""
        self._table.check(entry.path)
        found = self._table.store.info(entry.path)
        if self._seen.get(entry.path) == found:
            return
        why = why_changed(self._table, entry.path, entry.bytes, entry.sha256)
        if why is not None:
            raise damaged(self._table.location, entry.path, why)
        self._seen[entry.path] = found


def check_on_executors(spark: SparkSession, location: Location, entries: Sequence[FileEntry]) -> None:
    """Check many files, side by side; raise ArchiveDamaged for the first that is missing or changed."""
    if not entries:
        return
    wanted = spark.createDataFrame([(entry.path, entry.bytes, entry.sha256) for entry in entries], _WANTED)
    spread = wanted.repartition(min(len(entries), enough_tasks(spark)))
    found = spread.mapInArrow(_Findings(location), _FOUND_DDL).collect()
    if found:
        path, why = min((row["path"], row["why"]) for row in found)
        raise damaged(location, path, why)


@dataclass(frozen=True)
class _Findings(Shipped):
    location: Location

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = ArchiveTable(self.location)
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                why = _why(table, row["path"], row["bytes"], row["sha256"])
                if why is not None:
                    found.append({"path": row["path"], "why": why})
            yield pa.RecordBatch.from_pylist(found, _FOUND)


def _why(table: ArchiveTable, path: str, size: int, sha256: str) -> str | None:
    try:
        return why_changed(table, path, size, sha256)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    except ArchiveDamaged as error:
        return str(error)


def missing(error: FileNotFoundError) -> ArchiveDamaged:
    """Return the error for a missing file that no compaction has replaced."""
    return ArchiveDamaged(f"{error.filename or error} is missing; run `penstock archive verify`")


def damaged(location: Location, path: str, why: str) -> ArchiveDamaged:
    """Return the error for a file that must not be used."""
    return ArchiveDamaged(
        f"{location}/{path} is damaged: {why}. None of its rows were used; run `penstock archive verify`"
    )
