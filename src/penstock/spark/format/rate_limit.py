"""How much of the backlog a micro-batch takes: everything, or as much as the limits allow.

The server has no rank of an id, so an exact limit means reading the ids: the entries are walked once here and read once
more by the tasks. That is done only while the backlog is above the limit; then the walk also finds where to cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock import ids
from penstock.spark.source.offsets import BatchRange, IdRange, Position, between
from penstock.spark.source.partitioning import wanted_pieces
from penstock.spark.source.redis_log import RedisLog


@dataclass(frozen=True)
class Backlog:
    """What a stream holds after a position."""

    start: Position
    end: Position
    rows: int  # an estimate where a position has no rank
    most_rows: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing new."""
        return ids.parse(self.end.id) <= ids.parse(self.start.id)


@dataclass(frozen=True)
class BatchLimits:
    """The most that one batch may take."""

    rows: int | None = None
    bytes: int | None = None

    def allow(self, rows: int) -> bool:
        """Return whether this number of rows can be taken without looking at them."""
        return self.bytes is None and (self.rows is None or rows <= self.rows)


@dataclass(frozen=True)
class RateLimiter:
    """Decides what the next batch takes."""

    log: RedisLog

    def plan(self, backlogs: Mapping[str, Backlog], limits: BatchLimits) -> dict[str, BatchRange]:
        """Return for each stream what the batch takes of it."""
        waiting = {name: backlog for name, backlog in backlogs.items() if not backlog.is_empty}
        total = sum(backlog.rows for backlog in waiting.values())
        is_below = limits.allow(sum(backlog.most_rows for backlog in waiting.values()))
        taken = self._all(waiting) if is_below else self._some(waiting, limits, max(1, total))
        idle = {
            name: BatchRange(backlog.start, backlog.start) for name, backlog in backlogs.items() if name not in taken
        }
        return taken | idle

    def _all(self, waiting: Mapping[str, Backlog]) -> dict[str, BatchRange]:
        ranges = [IdRange(name, b.start.id, b.end.id, b.rows, b.start.rank) for name, b in waiting.items()]
        cuts = self.log.all_cuts(ranges, self.log.options.streaming_partitions)
        return {name: BatchRange(b.end, b.start, at) for (name, b), at in zip(waiting.items(), cuts, strict=True)}

    def _some(self, waiting: Mapping[str, Backlog], limits: BatchLimits, total: int) -> dict[str, BatchRange]:
        # Each stream gets its share, and at least one entry: a busy one does not starve the others.
        most_rows = limits.rows if limits.rows is not None else total
        options = self.log.options
        pieces = wanted_pieces(most_rows, most_rows, options.streaming_partitions, options.max_rows_per_partition)
        rows_per_piece = max(1, most_rows // pieces)
        taken = {}
        for name, backlog in waiting.items():
            share = backlog.rows / total
            quota = max(1, round(most_rows * share))
            size = None if limits.bytes is None else max(1, round(limits.bytes * share))
            taken[name] = self._walk(name, backlog, quota, size, rows_per_piece)
        return taken

    def _walk(self, name: str, backlog: Backlog, quota: int, size: int | None, rows_per_piece: int) -> BatchRange:
        rows, used, last, cuts = 0, 0, backlog.start.id, []
        whole = IdRange(name, backlog.start.id, backlog.end.id, backlog.rows, backlog.start.rank)
        for entry_id, bytes_ in self.log.scanner().walk(whole, with_sizes=size is not None):
            used += bytes_
            if rows and (rows >= quota or (size is not None and used > size)):
                break
            rows += 1
            last = entry_id.decode()
            if rows % rows_per_piece == 0:
                cuts.append(last)
        else:
            return BatchRange(backlog.end, backlog.start, between(cuts, backlog.start.id, backlog.end.id))
        rank = None if backlog.start.rank is None else backlog.start.rank + rows
        return BatchRange(Position(last, rank), backlog.start, between(cuts, backlog.start.id, last))
