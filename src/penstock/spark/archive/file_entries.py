"""Reads entries back out of a file of the archive, as the server would send them; some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import envelope, ids
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.id_masks import is_behind, unsigned
from penstock.spark.archive.layout import inside
from penstock.spark.archive.manifest import FileEntry
from penstock.spark.reading.rows import Entry

PAGE_ROWS = 5_000
_ALL = ["id", "ms", "seq", "data", "fields"]
_IDS = ["id", "ms", "seq"]


def read_entries(
    root: Path, entry: FileEntry, after: str, upto: str, *, ids_only: bool = False
) -> Iterator[list[Entry]]:
    """Return the entries behind an id, up to and with another one; with `ids_only` they have no fields."""
    with _opened(root, entry) as source:
        groups = [n for n in range(source.num_row_groups) if _may_hold(source, n, after, upto)]
        columns = _IDS if ids_only else _ALL
        for batch in _pages(inside(root, entry.path), source, groups, columns):
            ms, seq = unsigned(batch.column("ms")), unsigned(batch.column("seq"))
            mask = is_behind(ms, seq, after) & ~is_behind(ms, seq, upto)
            kept = batch if bool(mask.all()) else batch.filter(pa.array(mask))
            if kept.num_rows:
                yield _ids(kept) if ids_only else _entries(kept)


def _pages(file: Path, source: pq.ParquetFile, groups: list[int], columns: list[str]) -> Iterator[Any]:
    try:
        yield from source.iter_batches(PAGE_ROWS, row_groups=groups, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:  # a page whose checksum is wrong is an OSError
        raise ArchiveDamaged(f"{file} cannot be read ({error}); run `penstock archive verify`") from None


def count_upto(root: Path, entry: FileEntry, upto: str) -> int:
    """Return how many entries of a file lie at or before an id."""
    found = 0
    with _opened(root, entry) as source:
        for batch in source.iter_batches(PAGE_ROWS, columns=["ms", "seq"], use_threads=False):
            ms, seq = unsigned(batch.column("ms")), unsigned(batch.column("seq"))
            found += int(np.count_nonzero(~is_behind(ms, seq, upto)))
    return found


def group_ends(root: Path, entry: FileEntry) -> list[tuple[str, int]]:
    """Return for each row group of a file an id that ends it, and its rows; the next one may begin in it."""
    with _opened(root, entry) as source:
        rows = [source.metadata.row_group(n).num_rows for n in range(source.num_row_groups)]
        firsts = [_ms(source, n).min for n in range(1, source.num_row_groups)]
    if any(ms < 0 for ms in firsts):
        return [(entry.last, entry.rows)]
    ends = [ids.before(f"{ms}-0") for ms in firsts]
    return list(zip([*ends, entry.last], rows, strict=True))


def _opened(root: Path, entry: FileEntry) -> pq.ParquetFile:
    file = inside(root, entry.path)
    try:
        source = pq.ParquetFile(file, page_checksum_verification=True)
    except pa.ArrowException as error:
        raise ArchiveDamaged(f"{file} cannot be read ({error}); run `penstock archive verify`") from None
    if source.metadata.num_rows != entry.rows:
        raise ArchiveDamaged(
            f"{file} has {source.metadata.num_rows:,} entries, the manifest says {entry.rows:,}; run "
            "`penstock archive verify`"
        )
    return source


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
