"""Reads ranges of ids out of the archive where it has them, and out of Redis where it has not.

Which of the two is found out while reading, not when the query is planned: a range of ids is the same in both. What
retention trims while a task reads has been archived before, so a hole in Redis is looked up in the newest manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock import ids
from penstock.errors import DataLost
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.patience import patiently
from penstock.spark.reading.catalogue import look
from penstock.spark.reading.joined_state import JoinedState, joined
from penstock.spark.reading.loss import Gap, find_gap
from penstock.spark.reading.offsets import IdRange, Position
from penstock.spark.reading.rows import Entry, Page
from penstock.spark.reading.scan import Scanner

logger = logging.getLogger("penstock.spark")


class _Elsewhere(Exception):  # no error: where to read on
    def __init__(self, stream: str, before: str, at: Position) -> None:
        super().__init__(stream, before, at)
        self.stream, self.before, self.at = stream, before, at


@dataclass(frozen=True)
class _HotScanner(Scanner):
    """Reads from Redis, and stops where the archive is to be asked."""

    cold: ColdLog = field(kw_only=True)

    def _check(self, stream: str, at: Position) -> None:
        gap = self._gap(stream, at)
        if gap is None:
            return
        if gap.count != 0:
            if self.fail_on_data_loss:
                raise DataLost(
                    f"{gap}, and they are not in the archive. Set option failOnDataLoss=false to go on without them"
                )
            logger.warning("%s, and they are not in the archive; going on without them (failOnDataLoss=false)", gap)
        if self.cold.coverage(stream).holding(gap.resume.id) is not None:
            raise _Elsewhere(stream, at.id, gap.resume)

    def _gap(self, stream: str, at: Position) -> Gap | None:
        hot = patiently(lambda: look(self.client, [stream]), self.retry_timeout_s)[stream]
        self.cold.refresh()  # after Redis was looked at: what is gone there is here by now
        if self.cold.coverage(stream).holding(at.id) is not None:
            raise _Elsewhere(stream, at.id, at)
        state = joined(hot, self.cold.coverage(stream))
        return state.gap(stream, at) if isinstance(state, JoinedState) else find_gap(stream, at, hot)


@dataclass(frozen=True)
class JoinedScanner:
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
        except _Elsewhere as found:
            number = next(n for n, piece in enumerate(run) if _is_in(piece, found.stream, found.before))
            return [*_rest(run[number], found.at), *run[number + 1 :], *rest]
        return rest

    def _is_cold(self, piece: IdRange) -> bool:
        return self.cold.coverage(piece.stream).holding(piece.after) is not None


def _hot_scanner(hot: Scanner, cold: ColdLog) -> Scanner:
    return _HotScanner(hot.client, hot.fetch_size, hot.retry_timeout_s, hot.fail_on_data_loss, cold=cold)


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
