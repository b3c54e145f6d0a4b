"""Which ids of a stream an archive holds, and in which files. Pure.

A segment is a stretch of ids without a hole: commits that follow each other without a loss are one segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.spark.archive.state import FileEntry, RangeEntry
from penstock.spark.source.offsets import Position

Numbers = tuple[int, int]  # an id as it orders


@dataclass(frozen=True)
class Segment:
    """Every entry behind `start`, up to and with `end`."""

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
        """Return the segment that holds what comes behind an id."""
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
        """Return where the next segment behind an id begins."""
        number = bisect_right(self._starts, ids.parse(entry_id))
        return self.segments[number].start if number < len(self.segments) else None

    def files_between(self, after: str, upto: str) -> tuple[FileEntry, ...]:
        """Return the files that may hold entries of a range of ids, in order."""
        low = bisect_right(self._lasts, ids.parse(after))
        return self.files[low : max(low, bisect_right(self._firsts, ids.parse(upto)))]

    def files_before(self, entry_id: str) -> tuple[tuple[FileEntry, ...], FileEntry | None]:
        """Return the files that end before or with an id, and the one that it lies in the middle of."""
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


def _behind(entry_id: str) -> Numbers:
    ms, seq = ids.parse(entry_id)
    return ms, seq + 1
