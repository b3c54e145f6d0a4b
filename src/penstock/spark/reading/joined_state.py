"""A stream that lies partly in an archive and partly in Redis, seen as one; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock import ids
from penstock.spark.archive.coverage import Coverage
from penstock.spark.reading.catalogue import StreamState
from penstock.spark.reading.loss import Gap, find_gap
from penstock.spark.reading.offsets import Position


@dataclass(frozen=True)
class JoinedState(StreamState):
    """The state of both together; what it is made of."""

    hot: StreamState | None
    coverage: Coverage

    def gap(self, stream: str, at: Position) -> Gap | None:
        """Return what is missing behind a position in both; a gap of 0 entries is where reading goes on elsewhere."""
        if self.coverage.holding(at.id) is not None:
            return None
        ended = self.coverage.ending_by(at.id) if at.rank is None else None
        if ended is not None and ended.end.id == at.id:
            at = ended.end
        elif ended is not None and find_gap(stream, ended.end, self.hot) is None:
            return None  # a place between two entries, which has no rank: nothing is missing behind the one before it
        found = find_gap(stream, at, self.hot)
        return None if found is None else narrowed(found, at, self.coverage.next_start(at.id))

    def reach(self, stream: str, start: Position, end: Position) -> Position:
        """Return the end, or the place before it behind which something is missing."""
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
        return JoinedState(coverage.rows, end.id, first, end.rank, None, None, coverage)
    last_id = max(hot.last_id, end.id, key=ids.parse)
    is_all_hot = hot.first_id is not None and (first is None or ids.parse(hot.first_id) <= ids.parse(first))
    if is_all_hot or first is None:
        return JoinedState(hot.length, last_id, hot.first_id, hot.added, hot.last_deleted, hot, coverage)
    rank = coverage.segments[0].start.rank
    is_counted = hot.added is not None and rank is not None
    length = (hot.added or 0) - (rank or 0) if is_counted else coverage.rows + hot.length
    return JoinedState(max(0, length), last_id, first, hot.added, hot.last_deleted, hot, coverage)


def narrowed(gap: Gap, at: Position, cold: Position | None) -> Gap:
    """Return what is missing before the archive or Redis has entries again, whichever is first."""
    if cold is None or ids.parse(at.id) < ids.parse(gap.resume.id) <= ids.parse(cold.id):
        return gap
    is_counted = cold.rank is not None and at.rank is not None
    count = max(0, (cold.rank or 0) - (at.rank or 0)) if is_counted else None
    return replace(gap, before=ids.after(cold.id), count=count, is_exact=is_counted, resume=cold)
