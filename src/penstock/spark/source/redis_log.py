"""What can be read of the streams of a query: how much there is, where it can be cut, what is gone, and its entries.

This is what Redis alone holds. With the option `archive` it is Redis and the archive together (archive/hybrid_log.py).

Entries are read by ranges of ids, page by page, in an order that depends on nothing but the ranges. A range
always has the same entries: new ones are added after it, never into it. Only trimming can change it, so each page is
read together with the first entry of the stream: unless that comes after the start of the page, the page is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.redis.translate import checked
from penstock.spark.runtime.link import retry
from penstock.spark.source.catalogue import (
    Gap,
    StreamState,
    beginning,
    find_gap,
    look,
    look_at_group,
    report_loss,
    require,
)
from penstock.spark.source.offsets import IdRange, Position
from penstock.spark.source.options import EARLIEST, GROUP, LATEST, Bound, SourceOptions
from penstock.spark.source.partitioning import cut, cuts_by_density, enough_partitions, pack, wanted_pieces
from penstock.spark.source.rows import Entry, Page, RowBuilder
from penstock.sync.redis.client import StreamClient
from penstock.sync.redis.reading import Question, read_many

_WAVE_RANGES = 32
_NOWHERE = Position(ids.ZERO, 0)


@dataclass(frozen=True)
class Scanner:
    """Reads ranges; transient failures are waited out."""

    client: StreamClient
    fetch_size: int = 1_000
    retry_timeout_s: float = 60.0
    fail_on_data_loss: bool = True
    on_loss: Callable[[IdRange], None] = lambda _: None  # called with ids whose entries are gone, if that is no failure

    def pages(self, ranges: Sequence[IdRange]) -> Iterator[Page]:
        """Return the entries of the ranges, one range after the other."""
        for wave in self._waves(ranges):
            for piece, (first, entries) in zip(wave, self._read(wave), strict=True):
                yield from self._rest(piece, first, entries)

    def walk(self, piece: IdRange, *, with_sizes: bool) -> Iterator[tuple[bytes, int]]:
        """Return the ids of a range with the bytes of their entries, or 0."""
        for _, entries in self.pages([piece]):
            for entry_id, fields in entries:
                yield entry_id, sum(map(len, fields)) if with_sizes else 0

    def _waves(self, ranges: Sequence[IdRange]) -> Iterator[list[IdRange]]:
        # Short ranges are asked for together: a question each would cost more than the entries.
        wave: list[IdRange] = []
        rows = 0
        for piece in ranges:
            if wave and (rows + piece.rows > self.fetch_size or len(wave) >= _WAVE_RANGES):
                yield wave
                wave, rows = [], 0
            wave.append(piece)
            rows += piece.rows
        if wave:
            yield wave

    def _rest(self, piece: IdRange, first: list[Entry], entries: list[Entry]) -> Iterator[Page]:
        cursor, rank = piece.after, piece.rank
        while True:
            may_lack = not first or ids.parse(first[0][0].decode()) > ids.parse(cursor)
            if may_lack and self._has_lost(piece.stream, Position(cursor, rank)):
                upto = ids.before(entries[0][0].decode()) if entries else piece.upto
                self.on_loss(IdRange(piece.stream, cursor, upto))
            if entries:
                yield piece.stream, entries
            if len(entries) < self.fetch_size:
                return
            # Entries that were deleted one by one are not counted: a rank that is too low errs on the safe side.
            cursor, rank = entries[-1][0].decode(), None if rank is None else rank + len(entries)
            ((first, entries),) = self._read([IdRange(piece.stream, cursor, piece.upto)])

    def _read(self, wave: Sequence[IdRange]) -> list[tuple[list[Entry], list[Entry]]]:
        questions: list[Question] = []
        for piece in wave:
            key = self.client.keys(piece.stream).stream
            # In this order: the first entry shows that nothing had been trimmed when the page was read.
            questions.append((key, ("XRANGE", key, f"({piece.after}", piece.upto, "COUNT", self.fetch_size)))
            questions.append((key, ("XRANGE", key, "-", "+", "COUNT", 1)))
        replies = retry(lambda: checked(read_many(self.client, questions)), self.retry_timeout_s)
        return list(zip(replies[1::2], replies[::2], strict=True))

    def _has_lost(self, stream: str, at: Position) -> bool:
        """Return whether entries after a position are gone; raise DataLost if the query must not continue then."""
        state = retry(lambda: look(self.client, [stream]), self.retry_timeout_s)[stream]
        gap = find_gap(stream, at, state)
        if gap is not None:
            hint = "Set option failOnDataLoss=false to continue without them"
            report_loss(gap, hint, fails=self.fail_on_data_loss)
        return gap is not None


class Reading(Protocol):
    """Reads ranges of ids."""

    def pages(self, ranges: Sequence[IdRange]) -> Iterator[Page]:
        """Return the entries of the ranges, one range after the other."""

    def walk(self, piece: IdRange, *, with_sizes: bool) -> Iterator[tuple[bytes, int]]:
        """Return the ids of a range with the bytes of their entries, or 0."""


@dataclass(frozen=True)
class RedisLog:
    """What Redis holds."""

    options: SourceOptions

    @property
    def client(self) -> StreamClient:
        """The client of this process."""
        return self.options.link.client()

    def names(self) -> list[str]:
        """Return the names of the streams to read."""
        return self.options.stream_names(self.client)

    def look(self, names: Sequence[str]) -> Mapping[str, StreamState | None]:
        """Return the state of each stream, None for one that does not exist."""
        return look(self.client, names)

    def require(self, states: Mapping[str, StreamState | None]) -> None:
        """Raise StreamMissing if a stream that was named does not exist, unless it may come later."""
        options = self.options
        if not options.wait_for_streams and not options.selection.is_pattern and options.view == "entries":
            require(states, self.client)

    def scanner(self, on_loss: Callable[[IdRange], None] = lambda _: None) -> Reading:
        """Return what reads in this process."""
        return self.hot_scanner(on_loss)

    def hot_scanner(self, on_loss: Callable[[IdRange], None]) -> Scanner:
        """Return what reads from Redis in this process."""
        options = self.options
        timeout_s = options.retry_timeout.total_seconds()
        return Scanner(self.client, options.fetch_size, timeout_s, options.fail_on_data_loss, on_loss)

    def start(self, stream: str, bound: Bound, state: StreamState | None) -> Position:
        """Return the position after which reading begins."""
        return start_of(self.client, stream, bound, state, self.options.group)

    def gap(self, stream: str, at: Position, state: StreamState | None) -> Gap | None:
        """Return what is missing after a position."""
        return find_gap(stream, at, state)

    def reach(self, stream: str, start: Position, end: Position, state: StreamState) -> Position:
        """Return how far a batch can go: up to `end`, or to where something is missing."""
        del stream, start, state
        return end

    def check_end(self, stream: str, end: Position, state: StreamState) -> None:
        """Raise DataLost if it is known before reading that something is missing before the end."""

    def cuts(self, whole: IdRange, pieces: int) -> tuple[str, ...]:
        """Return where to cut a range into pieces of about the same size."""
        return cuts_by_density(self.client, whole, pieces)

    def all_cuts(self, ranges: Sequence[IdRange], min_partitions: int) -> list[tuple[str, ...]]:
        """Return for each range where it is to be cut; short ones are not even looked at."""
        max_rows, total = self.options.max_rows_per_partition, sum(piece.rows for piece in ranges)
        return [self.cuts(each, wanted_pieces(each.rows, total, min_partitions, max_rows)) for each in ranges]

    def partitions(self, ranges: Sequence[IdRange], cores: int = 1) -> list[tuple[IdRange, ...]]:
        """Share ranges that are read once out over partitions; a long read over all cores."""
        wanted = [piece for piece in ranges if not piece.is_empty]
        least = self.options.min_partitions or enough_partitions(sum(piece.rows for piece in wanted), cores)
        cuts = self.all_cuts(wanted, least)
        pieces = [piece for whole, at in zip(wanted, cuts, strict=True) for piece in cut(whole, at)]
        return pack(pieces, self.options.max_rows_per_partition, least)


def start_of(client: StreamClient, stream: str, bound: Bound, state: StreamState | None, group: str | None) -> Position:
    """Return the position after which reading begins."""
    if state is None:
        return _NOWHERE
    if bound.ms is not None:
        return placed(ids.before(f"{bound.ms}-0"), state)
    given = bound.of(stream)
    if given == EARLIEST:
        return beginning(state)
    if given == LATEST:
        return state.end
    if given == GROUP:
        assert group is not None
        return placed(group_position(client, stream, group), state)
    return _at_id(given, (bound.ranks or {}).get(stream), state)


def _at_id(bound_id: str, rank: int | None, state: StreamState) -> Position:
    if rank is not None:  # a known rank means that a reader was there: entries removed since are lost
        return Position(bound_id.removeprefix("("), rank)
    if bound_id.startswith("("):
        return placed(bound_id[1:], state)
    after = ids.before(bound_id)
    # Starting at an entry that was removed is a loss, too; a position without a rank is recognised as one.
    return Position(after) if _is_gone(bound_id, state) else placed(after, state)


def _is_gone(bound_id: str, state: StreamState) -> bool:
    """Return whether an id is among entries removed before the first one; zero is the beginning."""
    return bool(state.removed) and ids.parse(ids.ZERO) < ids.parse(bound_id) <= ids.parse(beginning(state).id)


def end_of(stream: str, bound: Bound | None, state: StreamState) -> Position:
    """Return the position up to which a batch query reads; the entry at a given id is read, one at a given time not."""
    last = state.end
    if bound is None or (bound.ms is None and bound.of(stream) == LATEST):
        return last
    if bound.by_stream is not None and stream not in bound.by_stream:
        return last
    wanted = ids.before(f"{bound.ms}-0") if bound.ms is not None else _upto(bound.of(stream))
    return last if ids.parse(wanted) >= ids.parse(state.last_id) else Position(wanted)


def _upto(bound_id: str) -> str:
    return ids.before(bound_id[1:]) if bound_id.startswith("(") else bound_id


def placed(after: str, state: StreamState) -> Position:
    """Return a position by id, with its rank if the server's counters give it."""
    if ids.parse(after) >= ids.parse(state.last_id):
        # Without counters, a position ahead of the stream looks like one in a stream that was deleted.
        return Position(after if state.added is not None else state.last_id, state.added)
    first = beginning(state)
    if ids.parse(after) <= ids.parse(first.id):
        return first  # nothing is left before the first entry, and only existing entries were requested
    return Position(after)


def group_position(client: StreamClient, stream: str, group: str) -> str:
    """Return the last id that a consumer group was handed."""
    found = look_at_group(client, stream, group)
    if found is None:
        raise ConfigurationError(f"stream {stream!r} has no consumer group {group!r} to start from")
    return str(found[b"last-delivered-id"].decode())


def read_ranges(
    log: RedisLog,
    rows: RowBuilder,
    ranges: Sequence[IdRange],
    on_loss: Callable[[IdRange], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of some ranges, one range after the other; `on_loss` is called as a Scanner calls it."""
    pages: list[Page] = []
    count = 0
    for page in log.scanner(on_loss).pages(ranges):
        pages.append(page)
        count += len(page[1])
        if count >= log.options.batch_rows:
            yield rows.build(pages)
            pages, count = [], 0
    if pages:
        yield rows.build(pages)
