"""What an archive and Redis hold together, as one stream: the option `archive` of the source.

Which of the two has a range is found out while reading, not when the query is planned: a range of ids is the same in
both. What retention trims while a task reads has been archived before, so a hole in Redis is looked up in the archive.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock import ids
from penstock.spark.archive.cold_log import ColdLog, Coverage
from penstock.spark.runtime.link import retry
from penstock.spark.source.catalogue import Gap, StreamSelection, StreamState, find_gap, look, report_loss
from penstock.spark.source.offsets import IdRange, Position, between
from penstock.spark.source.options import Bound
from penstock.spark.source.redis_log import Reading, RedisLog, Scanner
from penstock.spark.source.rows import Entry, Page


@dataclass(frozen=True)
class HybridState(StreamState):
    """The state of both together; what it is made of."""

    hot: StreamState | None
    coverage: Coverage

    def gap(self, stream: str, at: Position) -> Gap | None:
        """Return what is missing after a position in both; a gap of 0 entries is where reading continues elsewhere."""
        if self.coverage.holding(at.id) is not None:
            return None
        ended = self.coverage.ending_by(at.id) if at.rank is None else None
        if ended is not None and ended.end.id == at.id:
            at = ended.end
        elif ended is not None and find_gap(stream, ended.end, self.hot) is None:
            return None  # a position between two entries, which has no rank: nothing is missing after the one before it
        found = find_gap(stream, at, self.hot)
        return None if found is None else narrowed(found, at, self.coverage.next_start(at.id))

    def reach(self, stream: str, start: Position, end: Position) -> Position:
        """Return the end, or the position before it after which something is missing."""
        at = start
        while ids.parse(at.id) < ids.parse(end.id):
            segment = self.coverage.holding(at.id)
            if segment is None:
                return end  # Redis has the rest: it was looked at where this began
            at = segment.end
            gap = self.gap(stream, at) if ids.parse(at.id) < ids.parse(end.id) else None
            if gap is not None and gap.count != 0:
                return at
            at = at if gap is None else gap.resume
        return end


def joined(hot: StreamState | None, coverage: Coverage) -> StreamState | None:
    """Return the state of a stream whose archived part is looked at after Redis was: what went before is archived."""
    end = coverage.end
    if end is None:
        return hot
    first = coverage.files[0].first if coverage.files else None
    if hot is None:
        return HybridState(coverage.rows, end.id, first, end.rank, None, None, coverage)
    last_id = max(hot.last_id, end.id, key=ids.parse)
    is_all_hot = hot.first_id is not None and (first is None or ids.parse(hot.first_id) <= ids.parse(first))
    if is_all_hot or first is None:
        return HybridState(hot.length, last_id, hot.first_id, hot.added, hot.last_deleted, hot, coverage)
    rank = coverage.segments[0].start.rank
    is_counted = hot.added is not None and rank is not None
    length = (hot.added or 0) - (rank or 0) if is_counted else coverage.rows + hot.length
    return HybridState(max(0, length), last_id, first, hot.added, hot.last_deleted, hot, coverage)


def narrowed(gap: Gap, at: Position, cold: Position | None) -> Gap:
    """Return what is missing before the archive or Redis has entries again, whichever is first."""
    if cold is None or ids.parse(at.id) < ids.parse(gap.resume.id) <= ids.parse(cold.id):
        return gap
    is_counted = cold.rank is not None and at.rank is not None
    count = max(0, (cold.rank or 0) - (at.rank or 0)) if is_counted else None
    return replace(gap, before=ids.after(cold.id), count=count, is_exact=is_counted, resume=cold)


class _SwitchToArchive(Exception):  # no error: where to read on
    def __init__(self, stream: str, before: str, at: Position) -> None:
        super().__init__(stream, before, at)
        self.stream, self.before, self.at = stream, before, at


@dataclass(frozen=True)
class _HotScanner(Scanner):
    """Reads from Redis, and stops where the archive is to be asked."""

    cold: ColdLog = field(kw_only=True)

    def _has_lost(self, stream: str, at: Position) -> bool:
        gap = self._gap(stream, at)
        if gap is None:
            return False
        if gap.count != 0:
            hint = "Set option failOnDataLoss=false to continue without them"
            report_loss(f"{gap}, and they are not in the archive", hint, fails=self.fail_on_data_loss)
        if self.cold.coverage(stream).holding(gap.resume.id) is not None:
            raise _SwitchToArchive(stream, at.id, gap.resume)
        return gap.count != 0

    def _gap(self, stream: str, at: Position) -> Gap | None:
        hot = retry(lambda: look(self.client, [stream]), self.retry_timeout_s)[stream]
        self.cold.refresh()  # after Redis was looked at: what is gone there is here by now
        if self.cold.coverage(stream).holding(at.id) is not None:
            raise _SwitchToArchive(stream, at.id, at)
        state = joined(hot, self.cold.coverage(stream))
        return state.gap(stream, at) if isinstance(state, HybridState) else find_gap(stream, at, hot)


@dataclass(frozen=True)
class HybridScanner:
    """Reads ranges out of both."""

    hot: Scanner
    cold: ColdLog

    def pages(self, ranges: Sequence[IdRange]) -> Iterator[Page]:
        """Return the entries of the ranges, one range after the other."""
        return self._pages(ranges, ids_only=False)

    def walk(self, piece: IdRange, *, with_sizes: bool) -> Iterator[tuple[bytes, int]]:
        """Return the ids of a range with the bytes of their entries, or 0."""
        for _, entries in self._pages([piece], ids_only=not with_sizes):
            for entry_id, fields in entries:
                yield entry_id, sum(map(len, fields)) if with_sizes else 0

    def _pages(self, ranges: Sequence[IdRange], *, ids_only: bool) -> Iterator[Page]:
        waiting = list(ranges)
        while waiting:
            piece = waiting[0]
            segment = self.cold.coverage(piece.stream).holding(piece.after)
            if segment is None:
                waiting = yield from self._hot_run(waiting)
                continue
            end = segment.end if ids.parse(segment.end.id) < ids.parse(piece.upto) else Position(piece.upto)
            for entries in self.cold.pages(piece.stream, piece.after, end.id, ids_only=ids_only):
                yield piece.stream, entries
            waiting = [*_rest(piece, end), *waiting[1:]]

    def _hot_run(self, waiting: list[IdRange]) -> Generator[Page, None, list[IdRange]]:
        """Read the ranges at the head of the list that are not archived, together; return what is left of the list."""
        size = next((n for n, piece in enumerate(waiting) if self._is_cold(piece)), len(waiting))
        run, rest = waiting[:size], waiting[size:]
        try:
            for stream, entries in _hot_scanner(self.hot, self.cold).pages(run):
                yield stream, [_as_archived(entry) for entry in entries]
        except _SwitchToArchive as found:
            number = next(n for n, piece in enumerate(run) if _is_in(piece, found.stream, found.before))
            return [*_rest(run[number], found.at), *run[number + 1 :], *rest]
        return rest

    def _is_cold(self, piece: IdRange) -> bool:
        return self.cold.coverage(piece.stream).holding(piece.after) is not None


def _hot_scanner(hot: Scanner, cold: ColdLog) -> Scanner:
    return _HotScanner(hot.client, hot.fetch_size, hot.retry_timeout_s, hot.fail_on_data_loss, hot.on_loss, cold=cold)


def _rest(piece: IdRange, at: Position) -> list[IdRange]:
    rest = replace(piece, after=at.id, rank=at.rank)
    return [] if rest.is_empty else [rest]


def _is_in(piece: IdRange, stream: str, entry_id: str) -> bool:
    return piece.stream == stream and ids.parse(piece.after) <= ids.parse(entry_id) < ids.parse(piece.upto)


def _as_archived(entry: Entry) -> Entry:
    """Return an entry as it would come out of the archive: a batch that runs again must give the same rows."""
    entry_id, fields = entry
    if len(fields) == 2 and fields[0] == b"data":  # a name and its value
        return entry
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    data = found.pop(b"data", None)
    rest = [part for pair in found.items() for part in pair]
    return entry_id, rest if data is None else [b"data", data, *rest]


@dataclass(frozen=True)
class HybridLog(RedisLog):
    """Both as one stream, distinguished by ids alone."""

    @property
    def cold(self) -> ColdLog:
        """The archive as it is now."""
        assert self.options.archive is not None
        return ColdLog.of(self.options.archive)

    def names(self) -> list[str]:
        """Return the names of the streams to read, those among them that a pattern finds in the archive alone."""
        found = super().names()
        if not self.options.selection.is_pattern:
            return found
        archived = [name for name in self.cold.streams if _matches(self.options.selection, name)]
        return list(dict.fromkeys([*found, *archived]))

    def look(self, names: Sequence[str]) -> Mapping[str, StreamState | None]:
        """Return the state of each stream in both; Redis first, so that what is gone there is archived by then."""
        hot = super().look(names)
        cold = self.cold
        return {name: joined(state, cold.coverage(name)) for name, state in hot.items()}

    def scanner(self, on_loss: Callable[[IdRange], None] = lambda _: None) -> Reading:
        """Return what reads from both."""
        return HybridScanner(self.hot_scanner(on_loss), self.cold)

    def start(self, stream: str, bound: Bound, state: StreamState | None) -> Position:
        """Return the position after which reading begins; the archive knows the rank of an archived one."""
        found = super().start(stream, bound, state)
        if found.rank is not None or not isinstance(state, HybridState):
            return found
        return Position(found.id, self.cold.rank(stream, found.id))

    def gap(self, stream: str, at: Position, state: StreamState | None) -> Gap | None:
        """Return what is in neither of them after a position."""
        return state.gap(stream, at) if isinstance(state, HybridState) else super().gap(stream, at, state)

    def reach(self, stream: str, start: Position, end: Position, state: StreamState) -> Position:
        """Return how far a batch can go: a gap begins the next one, where it is counted."""
        return state.reach(stream, start, end) if isinstance(state, HybridState) else end

    def check_end(self, stream: str, end: Position, state: StreamState) -> None:
        """Raise DataLost if the two do not meet, and the query reads beyond the archive."""
        archived = state.coverage.end if isinstance(state, HybridState) else None
        if archived is None or ids.parse(end.id) < ids.parse(archived.id):
            return
        gap = self.gap(stream, archived, state)
        if gap is not None and gap.count != 0:
            hint = "Set option failOnDataLoss=false to read the rest"
            report_loss(f"{gap}, and they are not in the archive", hint, fails=self.options.fail_on_data_loss)

    def cuts(self, whole: IdRange, pieces: int) -> tuple[str, ...]:
        """Return where to cut a range: between files of the archive, or between their row groups, and then by time."""
        if pieces < 2:  # it is one
            return ()
        coverage, most_rows = self.cold.coverage(whole.stream), whole.rows / pieces
        end = coverage.end
        if end is None or ids.parse(end.id) <= ids.parse(whole.after):
            return super().cuts(whole, pieces)
        found, rows = self._cold_cuts(coverage, whole, most_rows)
        if ids.parse(end.id) < ids.parse(whole.upto):
            rest = IdRange(whole.stream, end.id, whole.upto, max(0, whole.rows - rows))
            found += [end.id, *super().cuts(rest, math.ceil(rest.rows / most_rows))]
        return between(found, whole.after, whole.upto)

    def _cold_cuts(self, coverage: Coverage, whole: IdRange, most_rows: float) -> tuple[list[str], int]:
        cold, found = self.cold, list[str]()
        total, waiting, before = 0, 0, whole.after
        for entry in coverage.files_between(whole.after, whole.upto):
            for entry_id, rows in cold.ends(entry, most_rows):
                if waiting and waiting + rows > most_rows * 1.25:
                    found.append(before)
                    waiting = 0
                waiting, total, before = waiting + rows, total + rows, entry_id
        return found, total


def _matches(selection: StreamSelection, name: str) -> bool:
    if selection.regex is not None:
        return re.fullmatch(selection.regex, name) is not None
    return fnmatch.fnmatchcase(name, (selection.glob or "*").replace("[^", "[!"))
