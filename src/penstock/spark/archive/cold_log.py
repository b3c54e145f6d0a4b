"""Which ids of a stream an archive has, in which files, and the archive as a log to read from.

A segment is a stretch of ids without a hole: commits that follow each other without a loss are one segment. The log
follows the table while a run adds to it and compactions replace its files.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock import ids
from penstock.errors import PenstockError
from penstock.spark.archive.file_reader import count_upto, group_ends, missing, read_entries
from penstock.spark.archive.state import FileEntry, RangeEntry, State
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location
from penstock.spark.source.offsets import Position
from penstock.spark.source.rows import Entry

IdNumbers = tuple[int, int]  # an id as it orders
_IDENTIFIED_FOR_S = 5.0
_opened: dict[tuple[int, Location], tuple[ColdLog, float]] = {}


@dataclass(frozen=True)
class Segment:
    """Every entry after `start`, up to and with `end`."""

    start: Position
    end: Position


class Coverage:
    """What an archive holds of one stream."""

    def __init__(self, ranges: Sequence[RangeEntry], files: Sequence[FileEntry]) -> None:
        self.segments = _segments(ranges)
        self.files = tuple(files)
        self._starts = [ids.parse(segment.start.id) for segment in self.segments]
        self._lasts = [ids.parse(entry.last) for entry in self.files]
        self._firsts = [ids.parse(entry.first) for entry in self.files]

    @property
    def end(self) -> Position | None:
        """Up to where the stream is archived."""
        return self.segments[-1].end if self.segments else None

    @property
    def rows(self) -> int:
        """How many entries are archived."""
        return sum(entry.rows for entry in self.files)

    def holding(self, entry_id: str) -> Segment | None:
        """Return the segment that holds what comes after an id."""
        here = ids.parse(entry_id)
        number = bisect_right(self._starts, here) - 1
        if number < 0 or here >= ids.parse(self.segments[number].end.id):
            return None
        return self.segments[number]

    def ending_by(self, entry_id: str) -> Segment | None:
        """Return the last segment that ends with an id or before it."""
        here = ids.parse(entry_id)
        return next((segment for segment in reversed(self.segments) if ids.parse(segment.end.id) <= here), None)

    def next_start(self, entry_id: str) -> Position | None:
        """Return where the next segment after an id begins."""
        number = bisect_right(self._starts, ids.parse(entry_id))
        return self.segments[number].start if number < len(self.segments) else None

    def files_between(self, after: str, upto: str) -> tuple[FileEntry, ...]:
        """Return the files that may hold entries of a range of ids, in order."""
        low = bisect_right(self._lasts, ids.parse(after))
        return self.files[low : max(low, bisect_right(self._firsts, ids.parse(upto)))]

    def files_before(self, entry_id: str) -> tuple[tuple[FileEntry, ...], FileEntry | None]:
        """Return the files that end before or with an id, and the one that contains it."""
        here = ids.parse(entry_id)
        number = bisect_right(self._lasts, here)
        is_inside = number < len(self.files) and self._firsts[number] <= here
        return self.files[:number], self.files[number] if is_inside else None

    def complete_rank(self, segment: Segment) -> int | None:
        """Return the rank at which a segment begins if ranks can be counted in it: no entry was deleted before."""
        start, end = segment.start, segment.end
        if start.rank is None or end.rank is None:
            return None
        low, high = bisect_right(self._lasts, ids.parse(start.id)), bisect_left(self._firsts, _behind(end.id))
        rows = sum(entry.rows for entry in self.files[low:high])
        return start.rank if rows == end.rank - start.rank else None


def _segments(ranges: Sequence[RangeEntry]) -> tuple[Segment, ...]:
    found: list[Segment] = []
    for each in ranges:
        if found and each.lost == 0:
            found[-1] = Segment(found[-1].start, each.end)
        else:
            found.append(Segment(Position(each.after, each.after_n), each.end))
    return tuple(found)


def _behind(entry_id: str) -> IdNumbers:
    ms, seq = ids.parse(entry_id)
    return ms, seq + 1


class ColdLog:
    """The newest state of an archive that this process has seen."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table, self._state = table, State()
        self._files: dict[str, list[FileEntry]] = {}
        self._coverages: dict[str, Coverage] = {}

    @classmethod
    def of(cls, root: str | Path | Location, now_s: Callable[[], float] = time.monotonic) -> ColdLog:
        """Return the log of this process, up to date; raise ArchiveMissing if there is none.

        Opening a table takes much longer than looking for new commits. So a log is compared with the table at its path
        only now and then: another archive may have been created there.
        """
        location = Location.of(root, what="archive")
        key = (os.getpid(), location)
        log, until_s = _opened.get(key, (None, 0.0))
        if log is not None and now_s() < until_s:
            with suppress(PenstockError, OSError):
                log.refresh()
                return log
        table = ArchiveTable(location)
        identity = table.log.identity
        if log is None or log.identity != identity:
            log = cls(table)
        _opened[key] = log, now_s() + _IDENTIFIED_FOR_S
        log.refresh()
        return log

    @property
    def identity(self) -> str:
        """The identity of the table."""
        return self._table.log.identity

    def refresh(self) -> bool:
        """Look at the table again; return whether anything was new."""
        is_new = self._table.follow(self._state)
        if is_new:
            self._coverages.clear()
            self._files = self._state.files_by_stream()
        return is_new

    @property
    def streams(self) -> list[str]:
        """The streams that are archived."""
        return self._state.streams

    def coverage(self, stream: str) -> Coverage:
        """Return what is archived of a stream."""
        found = self._coverages.get(stream)
        if found is None:
            found = self._coverages[stream] = Coverage(self._state.ranges.get(stream, ()), self._files.get(stream, ()))
        return found

    def pages(self, stream: str, after: str, upto: str, *, ids_only: bool = False) -> Iterator[list[Entry]]:
        """Return the archived entries of a range of ids, some at a time."""
        while True:
            try:
                for entry in self.coverage(stream).files_between(after, upto):
                    for page in read_entries(self._table, entry, after, upto, ids_only=ids_only):
                        yield page
                        after = page[-1][0].decode()
            except FileNotFoundError as error:
                if not self.refresh():  # else a compaction has replaced and cleaned it meanwhile
                    raise missing(error) from None
            else:
                return

    def rank(self, stream: str, entry_id: str) -> int | None:
        """Return how many entries were added up to an archived id; None if that is unknown."""
        coverage = self.coverage(stream)
        segment = coverage.holding(entry_id)
        rank = None if segment is None else coverage.complete_rank(segment)
        if segment is None or rank is None:
            return None
        whole, inside = coverage.files_before(entry_id)
        before = coverage.files_before(segment.start.id)[0]
        found = rank + sum(entry.rows for entry in whole[len(before) :])
        return found if inside is None else found + count_upto(self._table, inside, entry_id)

    def ends(self, entry: FileEntry, most_rows: float) -> list[tuple[str, int]]:
        """Return where a file can be cut, with the rows of each part: at its end, a big one also between row groups."""
        return [(entry.last, entry.rows)] if entry.rows <= most_rows else group_ends(self._table, entry)
