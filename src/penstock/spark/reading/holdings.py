"""What can be read of the streams of a query: how much there is, where it can be cut, what of it is gone.

This is what Redis alone holds. With the option `archive` it is Redis and the archive together (joined_holdings.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.spark.reading.catalogue import StreamState, look, require
from penstock.spark.reading.loss import Gap, find_gap
from penstock.spark.reading.offsets import IdRange, Position
from penstock.spark.reading.options import Bound, SourceOptions
from penstock.spark.reading.planner import cut, pack, wanted_pieces
from penstock.spark.reading.planning import cuts_by_density
from penstock.spark.reading.positions import start_of
from penstock.spark.reading.rows import Page
from penstock.spark.reading.scan import Scanner
from penstock.sync.redis.client import StreamClient


class Reading(Protocol):
    """Reads ranges of ids."""

    def pages(self, ranges: Sequence[IdRange]) -> Iterator[Page]:
        """Return the entries of the ranges, one range after the other."""

    def walk(self, piece: IdRange, *, with_sizes: bool) -> Iterator[tuple[bytes, int]]:
        """Return the ids of a range with the bytes of their entries, or 0."""


@dataclass(frozen=True)
class Holdings:
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

    def scanner(self) -> Reading:
        """Return what reads in this process."""
        return self.hot_scanner()

    def hot_scanner(self) -> Scanner:
        """Return what reads from Redis in this process."""
        options = self.options
        timeout_s = options.retry_timeout.total_seconds()
        return Scanner(self.client, options.fetch_size, timeout_s, options.fail_on_data_loss)

    def start(self, stream: str, bound: Bound, state: StreamState | None) -> Position:
        """Return the position behind which reading begins."""
        return start_of(self.client, stream, bound, state, self.options.group)

    def gap(self, stream: str, at: Position, state: StreamState | None) -> Gap | None:
        """Return what is missing behind a position."""
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

    def all_cuts(self, ranges: Sequence[IdRange]) -> Mapping[str, tuple[str, ...]]:
        """Return for each stream where its range is to be cut; short ones are not even looked at."""
        options, total = self.options, sum(piece.rows for piece in ranges)
        found = {}
        for whole in ranges:
            pieces = wanted_pieces(whole.rows, total, options.min_partitions, options.max_rows_per_partition)
            found[whole.stream] = self.cuts(whole, pieces)
        return found

    def partitions(self, ranges: Sequence[IdRange]) -> list[tuple[IdRange, ...]]:
        """Share ranges out over partitions."""
        wanted = [piece for piece in ranges if not piece.is_empty]
        cuts = self.all_cuts(wanted)
        pieces = [piece for whole in wanted for piece in cut(whole, cuts[whole.stream])]
        return pack(pieces, self.options.max_rows_per_partition, self.options.min_partitions)


def holdings_of(options: SourceOptions) -> Holdings:
    """Return what a query reads from."""
    if options.archive is None:
        return Holdings(options)
    from penstock.spark.reading.joined_holdings import JoinedHoldings  # tasks of other queries need not load Parquet

    return JoinedHoldings(options)
