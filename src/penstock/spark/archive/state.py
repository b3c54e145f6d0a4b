"""What an archive consists of: rows, files, the ranges of ids that they cover, and their names; and its errors. Pure.

The payload of an entry is kept once: in the files `fields` holds the fields of an entry other than `data`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import ids
from penstock.errors import ConfigurationError, NotFound, PenstockError
from penstock.spark.lake.delta import DataFile
from penstock.spark.payload.ddl import to_ddl
from penstock.spark.source.offsets import Position
from penstock.spark.source.rows import LAST_MS, times

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
_TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("stream", _TEXT),
        ("id", _TEXT),
        ("ms", pa.int64()),
        ("seq", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
        ("key", _TEXT),
        ("headers", pa.map_(_TEXT, _TEXT)),
        ("message_id", _TEXT),
        ("fields", pa.map_(_TEXT, pa.binary())),
    ]
)
DDL = to_ddl(SCHEMA)
# What is read of an entry: the rest is in these.
READ_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in ("timestamp", "data")])
WHOLE_FIELDS = "map_concat(if(data is null, cast(map() as map<string,binary>), map('data', data)), fields)"
DAY_MS = 86_400_000
_LONGEST = 200  # most file systems end a name at 255 bytes
_KEPT = 160
FILE = re.compile(
    r"stream=[^/\\\0]+/day=\d{4}-\d{2}-\d{2}/(?P<first>\d+-\d+)_(?P<last>\d+-\d+)_(?P<sha256>[0-9a-f]{64})"
    r"_[0-9a-f]+\.parquet",
    re.ASCII,
)


def stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the source as they are kept."""
    data, rest = _apart(batch.column("fields"))
    made = {
        "timestamp": times(batch.column("ms").cast(pa.int64()).to_numpy(), pa.timestamp("us", tz="UTC")),
        "data": data,
        "fields": rest,
    }
    arrays = [_as(made[f.name] if f.name in made else batch.column(f.name), f.type) for f in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _as(array: Any, kind: pa.DataType) -> Any:
    return array if array.type == kind else array.cast(kind)


def _apart(fields: Any) -> tuple[Any, Any]:
    # The entries of all maps are contiguous: those called `data` are taken out, column-wise.
    offsets = np.asarray(fields.offsets)
    start, stop = int(offsets[0]), int(offsets[-1])
    names, values = fields.keys.slice(start, stop - start), fields.items.slice(start, stop - start)
    is_data = np.asarray(pc.equal(names, "data").cast(pa.uint8())).astype(bool)
    row_of = np.repeat(np.arange(len(fields)), np.diff(offsets))
    row_index = np.full(len(fields), -1, np.int64)
    row_index[row_of[is_data]] = np.flatnonzero(is_data)
    data = values.take(pa.array(row_index, pa.int64(), mask=row_index < 0))
    kept = pa.array(~is_data)
    before = np.concatenate([[0], np.cumsum(~is_data)])
    ends = pa.array(before[offsets - start].astype(np.int32))
    return data.cast(pa.binary()), pa.MapArray.from_arrays(ends, names.filter(kept), values.filter(kept))


def is_behind(ms: Numbers, seq: Numbers, entry_id: str) -> Mask:
    """Return for each row whether its id is greater; both numbers are unsigned, as the server's are."""
    at_ms, at_seq = (np.uint64(number) for number in ids.parse(entry_id))
    found: Mask = (ms > at_ms) | ((ms == at_ms) & (seq > at_seq))
    return found


def is_between(batch: pa.RecordBatch, after: str, upto: str) -> Mask:
    """Return for each row whether its id is after one id, and not after another."""
    ms, seq = unsigned(batch.column("ms")), unsigned(batch.column("seq"))
    return is_behind(ms, seq, after) & ~is_behind(ms, seq, upto)


def between(batch: pa.RecordBatch, after: str, upto: str) -> pa.RecordBatch:
    """Return the rows after one id, up to and with another."""
    mask = is_between(batch, after, upto)
    return batch if bool(mask.all()) else batch.filter(pa.array(mask))


def unsigned(column: Any) -> Numbers:
    """Return a column of signed 64-bit numbers as those that it was made of: beyond the half they have wrapped."""
    found: Numbers = column.to_numpy().view(np.uint64)
    return found


class ArchiveMissing(NotFound, ConfigurationError):
    """There is no archive at the path that was named."""


class ArchiveDamaged(PenstockError):
    """The archive is not what its log says, or the log itself is not whole."""


class ArchiveConflict(PenstockError):
    """Another writer changed the archive, or a stream was created again with ids that are already archived."""


@dataclass(frozen=True)
class FileEntry:
    """One file of entries of one stream and one day, in the order of their ids."""

    path: str  # below the root
    stream: str
    day: str
    first: str
    last: str
    rows: int
    bytes: int
    sha256: str

    @classmethod
    def of(cls, file: DataFile) -> FileEntry:
        """Take a file of the table; raise ArchiveDamaged for one that no archive has written."""
        match = check_path(file.path)
        stream, day = file.partition.get("stream"), file.partition.get("day")
        if stream is None or day is None or file.rows is None:
            raise ArchiveDamaged(f"the table has no description of {file.path}: it was not written by an archive run")
        return cls(file.path, stream, day, match["first"], match["last"], file.rows, file.size, match["sha256"])

    def data_file(self, stats: str = "{}") -> DataFile:
        """Return it as a file of the table."""
        return DataFile(self.path, self.bytes, {"stream": self.stream, "day": self.day}, self.rows, stats)


@dataclass(frozen=True)
class RangeEntry:
    """A range of ids that is archived: after the id `after`, up to and with `upto`; `*_n` are their known ranks."""

    stream: str
    after: str
    upto: str
    rows: int
    after_n: int | None = None
    upto_n: int | None = None
    lost: int | None = 0  # entries before it that were gone before they could be archived; None = unknown

    @property
    def end(self) -> Position:
        """Where it ends."""
        return Position(self.upto, self.upto_n)

    def joined(self, later: RangeEntry) -> RangeEntry | None:
        """Return this range and the next one as one; None if they do not meet."""
        is_same_position = self.upto == later.after or (self.upto_n is not None and self.upto_n == later.after_n)
        if later.lost != 0 or not is_same_position or ids.parse(later.after) < ids.parse(self.upto):
            return None
        return replace(self, upto=later.upto, upto_n=later.upto_n, rows=self.rows + later.rows)


@dataclass
class State:
    """What is archived as of a commit."""

    version: int = -1
    files: dict[str, FileEntry] = field(default_factory=dict)
    ranges: dict[str, list[RangeEntry]] = field(default_factory=dict)

    @property
    def streams(self) -> list[str]:
        """The streams that are archived."""
        return sorted(self.ranges)

    def end(self, stream: str) -> Position | None:
        """Return up to where a stream is archived."""
        found = self.ranges.get(stream)
        return found[-1].end if found else None

    def files_of(self, stream: str) -> list[FileEntry]:
        """Return the files of a stream in the order of their ids."""
        return in_order(entry for entry in self.files.values() if entry.stream == stream)

    def files_by_stream(self) -> dict[str, list[FileEntry]]:
        """Return the files of all streams, each in the order of their ids."""
        found: dict[str, list[FileEntry]] = {stream: [] for stream in self.streams}
        for entry in in_order(self.files.values()):
            found.setdefault(entry.stream, []).append(entry)
        return found

    def range_of(self, stream: str, entry_id: str) -> RangeEntry | None:
        """Return the archived range that contains an id."""
        here = ids.parse(entry_id)
        for each in self.ranges.get(stream, ()):
            if ids.parse(each.after) < here <= ids.parse(each.upto):
                return each
        return None

    def cover(self, ranges: Iterable[RangeEntry]) -> None:
        """Add ranges; those that meet become one."""
        for each in ranges:
            known = self.ranges.setdefault(each.stream, [])
            whole = known[-1].joined(each) if known else None
            if whole is None:
                known.append(each)
            else:
                known[-1] = whole


def in_order(files: Iterable[FileEntry]) -> list[FileEntry]:
    """Return files in the order of their ids."""
    return sorted(files, key=lambda entry: ids.parse(entry.first))


def check_path(path: str) -> re.Match[str]:
    """Raise ArchiveDamaged unless a path is one that path_of() makes: a log may have been written by anybody."""
    match = FILE.fullmatch(path)
    if match is None:
        raise ArchiveDamaged(f"the table refers to {path!r}, which is not a file of an archive and was not read")
    return match


def path_of(stream: str, day: str, first: str, last: str, sha256: str) -> str:
    """Return the path of a new file, relative to the root."""
    return f"stream={safe_name(stream)}/day={day}/{first}_{last}_{sha256}_{secrets.token_hex(4)}.parquet"


def safe_name(stream: str) -> str:
    """Return the name of a stream as a part of a path; different streams have different ones."""
    quoted = quote(stream, safe="")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if len(quoted) > _LONGEST:
        return f"{quoted[:_KEPT]}~{hashlib.sha256(stream.encode()).hexdigest()[:16]}"
    return quoted


def day_of(ms: int) -> str:
    """Return the day of a time, in UTC; later times are put into the last day of the calendar."""
    return datetime.fromtimestamp(min(ms, LAST_MS) // 1000, UTC).strftime("%Y-%m-%d")
