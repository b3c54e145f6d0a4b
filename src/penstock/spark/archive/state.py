"""What an archive consists of: files, the ranges of ids that they cover, and the names of both. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import quote

from penstock import ids
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.lake.delta import DataFile
from penstock.spark.source.offsets import Position

DAY_MS = 86_400_000
LAST_MS = 253_402_300_799_999  # the end of the year 9999; an id may be any number, as one that somebody chose
_LONGEST = 200  # most file systems end a name at 255 bytes
_KEPT = 160
FILE = re.compile(
    r"stream=[^/\\\0]+/day=\d{4}-\d{2}-\d{2}/(?P<first>\d+-\d+)_(?P<last>\d+-\d+)_(?P<sha256>[0-9a-f]{64})"
    r"_[0-9a-f]+\.parquet",
    re.ASCII,
)


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
            raise ArchiveDamaged(f"the table does not say what is in {file.path}: no archive has written it")
        return cls(file.path, stream, day, match["first"], match["last"], file.rows, file.size, match["sha256"])

    def data_file(self, stats: str = "{}") -> DataFile:
        """Return it as a file of the table."""
        return DataFile(self.path, self.bytes, {"stream": self.stream, "day": self.day}, self.rows, stats)


@dataclass(frozen=True)
class RangeEntry:
    """A range of ids that is archived: behind `after`, up to and with `upto`; `*_n` are their ranks where known."""

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
        is_same_place = self.upto == later.after or (self.upto_n is not None and self.upto_n == later.after_n)
        if later.lost != 0 or not is_same_place or ids.parse(later.after) < ids.parse(self.upto):
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
        """Return the archived range that an id lies in."""
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
        raise ArchiveDamaged(f"the table names {path!r}, which is no file of an archive: nothing of it is used")
    return match


def path_of(stream: str, day: str, first: str, last: str, sha256: str) -> str:
    """Return where a new file lies below the root."""
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
    """Return the day of a time, in UTC; what lies beyond the calendar is put into its last day."""
    return datetime.fromtimestamp(min(ms, LAST_MS) // 1000, UTC).strftime("%Y-%m-%d")
