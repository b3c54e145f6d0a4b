"""Reads the entries of id ranges, page by page, in an order that depends on nothing but the ranges.

A range of ids is the same whoever reads it and how often: new entries come behind it, never into it. What can happen to
it is trimming, so each page is read together with the first entry of the stream: as long as that is not behind the
place where the page begins, the page is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.errors import DataLost, PenstockError
from penstock.redis.aio import Reply
from penstock.spark.runtime.retry import retry
from penstock.spark.source.catalogue import look
from penstock.spark.source.loss import find_gap
from penstock.spark.source.offsets import IdRange, Position
from penstock.spark.source.rows import Entry, Page
from penstock.sync.redis.client import StreamClient
from penstock.sync.redis.reading import Question, read_many

logger = logging.getLogger("penstock.spark")
_WAVE_RANGES = 32


@dataclass(frozen=True)
class Scanner:
    """Reads ranges; transient failures are waited out."""

    client: StreamClient
    fetch_size: int = 1_000
    retry_timeout_s: float = 60.0
    fail_on_data_loss: bool = True

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
            if not first or ids.parse(first[0][0].decode()) > ids.parse(cursor):
                self._check(piece.stream, Position(cursor, rank))
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
            # In this order: the first entry tells of the page before it that nothing was trimmed until then.
            questions.append((key, ("XRANGE", key, f"({piece.after}", piece.upto, "COUNT", self.fetch_size)))
            questions.append((key, ("XRANGE", key, "-", "+", "COUNT", 1)))
        replies = retry(lambda: _replies(self.client, questions), self.retry_timeout_s)
        return list(zip(replies[1::2], replies[::2], strict=True))

    def _check(self, stream: str, at: Position) -> None:
        state = retry(lambda: look(self.client, [stream]), self.retry_timeout_s)[stream]
        gap = find_gap(stream, at, state)
        if gap is None:
            return
        if self.fail_on_data_loss:
            raise DataLost(f"{gap}. Set option failOnDataLoss=false to go on without them")
        logger.warning("%s; going on without them (failOnDataLoss=false)", gap)


def _replies(client: StreamClient, questions: Sequence[Question]) -> list[Reply]:
    replies = read_many(client, questions)
    for reply in replies:
        if isinstance(reply, PenstockError):
            raise reply
    return replies
