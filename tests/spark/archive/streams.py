"""Streams as lists, and archives of them without Spark: the code of the driver and of the tasks, called directly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import ids
from penstock.spark.archive.batch import BatchArchiver
from penstock.spark.archive.file_reader import batches_of
from penstock.spark.archive.file_writer import ArchiveTask, StagedFile
from penstock.spark.archive.state import DAY_MS, FileEntry
from penstock.spark.archive.table import ArchiveTable, load_state
from penstock.spark.lake.files import Location
from penstock.spark.source.offsets import BatchRange, Offsets, Position

START_MS = 19_676 * DAY_MS  # 2023-11-15, the beginning of the day
_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("id", pa.string()),
        ("ms", pa.int64()),
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("message_id", pa.string()),
        ("fields", pa.map_(pa.string(), pa.binary())),
    ]
)


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it."""


@dataclass
class Stream:
    """A stream that nobody trims."""

    name: str = "orders"
    entries: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    def add(self, count: int, *, every_ms: int = 1) -> None:
        for _ in range(count):
            n = len(self.entries)
            self.entries.append((f"{START_MS + n * every_ms}-{n % 3}", {"data": b"%d" % n, "n": b"x" * (n % 5)}))

    def position(self, n: int) -> Position:
        return Position(self.entries[n - 1][0] if n else ids.ZERO, n)

    def progress(self, start: int, stop: int, cuts: Sequence[int] = ()) -> BatchRange:
        return BatchRange(self.position(stop), self.position(start), tuple(self.entries[n - 1][0] for n in cuts))

    def rows(self, start: int, stop: int, size: int = 7) -> list[pa.RecordBatch]:
        ranges = [range(low, min(stop, low + size)) for low in range(start, stop, size)]
        return [pa.RecordBatch.from_pylist([self._row(n) for n in each], _SCHEMA) for each in ranges]

    def _row(self, n: int) -> dict[str, Any]:
        entry_id, fields = self.entries[n]
        ms, seq = ids.parse(entry_id)
        message_id = fields["message_id"].decode() if "message_id" in fields else None
        return {
            "stream": self.name, "id": entry_id, "ms": _signed(ms), "seq": _signed(seq), "key": None, "headers": [],
            "message_id": message_id, "fields": list(fields.items()),
        }  # fmt: skip


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def archived(root: Path | Location, stream: str = "orders") -> list[tuple[str, dict[str, bytes]]]:
    """Returns what an archive holds of a stream, by the log of its table, in order."""
    found = []
    store = Location.of(root).store
    for entry in files_of(root, stream):
        for batch in batches_of(store.opened(entry.path)):
            found += list(zip(batch.column("id").to_pylist(), _whole_fields(batch), strict=True))
    return found


def files_of(root: Path | Location, stream: str = "orders") -> list[FileEntry]:
    return load_state(root).files_of(stream)


def opened(root: Path | Location, step: Callable[[str], None] = lambda _: None, **settings: Any) -> BatchArchiver:
    archiver = BatchArchiver(ArchiveTable.of(root), step=step, **settings)
    archiver.open()
    return archiver


def archive(archiver: BatchArchiver, stream: Stream, start: int, stop: int, cuts: Sequence[int] = ()) -> Any:
    """Archives entries of a stream as one batch, whose partitions are read the last one first."""
    bounds = [start, *cuts, stop]

    def write(task: ArchiveTask) -> list[StagedFile]:
        parts = list(itertools.pairwise(bounds))
        return [made for low, high in reversed(parts) for made in task.write(stream.rows(low, high))]

    return archiver.archive(Offsets({stream.name: stream.progress(start, stop, cuts)}), write)


def flip_a_bit_of_the_payload(file: Path) -> None:
    """Changes one bit in the first payload of a file, which stays readable but for its checksums."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as source:
        column = source.metadata.row_group(0).column(source.schema_arrow.get_field_index("data"))
        middle = column.data_page_offset + column.total_compressed_size - 3
    content = bytearray(file.read_bytes())
    content[middle] ^= 1
    file.write_bytes(content)


def _whole_fields(batch: pa.RecordBatch) -> list[dict[str, bytes]]:
    rest = batch.column("fields").to_pylist()
    data = batch.column("data").to_pylist()
    return [{**({} if d is None else {"data": d}), **dict(pairs or ())} for d, pairs in zip(data, rest, strict=True)]
