"""The reader of streaming queries: offsets on the driver, ranges of ids in the tasks.

On the driver one instance lives as long as the query and is asked, batch by batch: where does the next batch end, and
which tasks does it have? Everything it needs to answer the second question is in the answer to the first (offsets.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock import ids
from penstock.spark.format.base_stream_reader import BaseStreamReader
from penstock.spark.format.rate_limit import Backlog, BatchLimits, RateLimiter
from penstock.spark.source.catalogue import StreamState
from penstock.spark.source.offsets import BatchRange, Offset, Offsets, Position
from penstock.spark.source.options import EARLIEST, Bound, SourceOptions
from penstock.spark.source.partitioning import rows_between
from penstock.spark.source.rows import RowBuilder


class StreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        super().__init__(options, rows)
        self._target: Mapping[str, Position] | None = None  # of Trigger.AvailableNow
        self._took_s = time.monotonic()  # when the last batch began

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return one of the limits: that there are any is all that Spark wants to know."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_rows is not None:
            return ReadMinRows(self._options.min_rows)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Fix the end of the query: read what is available now, and nothing that comes later."""
        states = self._retry(lambda: self._look({}))
        self._target = {name: state.end for name, state in states.items() if state is not None}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Return where the next batch ends. Everything up to `start` is committed when this is asked."""
        return self._retry(lambda: self._next(start, limit))

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        at = Offsets.load(start)
        states = self._look(at.streams)
        lost = {name: progress.lost for name, progress in at.streams.items()}
        backlogs = {}
        for name, state in states.items():
            here = self._checked(name, at, state, lost)
            if state is not None:
                self._show(name, here)
            backlogs[name] = self._backlog(name, here, state)
        is_unlimited = isinstance(limit, ReadAllAvailable)
        if all(backlog.is_empty for backlog in backlogs.values()):
            return start
        if not is_unlimited and self._should_wait(sum(backlog.rows for backlog in backlogs.values())):
            return start
        limits = BatchLimits() if is_unlimited else BatchLimits(self._options.max_rows, self._options.max_bytes)
        planned = RateLimiter(self._log).plan(backlogs, limits)
        self._took_s = time.monotonic()
        # A stream that is not asked for any more keeps its position, should it be asked for again.
        taken = {**Offsets.at(at.positions()).streams, **planned}
        return Offsets({name: _with_lost(progress, lost.get(name, 0)) for name, progress in taken.items()}).dump()

    def _checked(self, name: str, at: Offsets, state: StreamState | None, lost: dict[str, int]) -> Position:
        if name not in at.streams:
            # Appeared since the query began: read from its first entry on.
            return self._log.start(name, Bound(common=EARLIEST), state)
        here = at.streams[name].end
        gap = self._gap(name, here, state)
        if gap is None:
            return here
        if gap.count != 0:
            lost[name] = lost.get(name, 0) + (gap.count or 1)
        return gap.resume

    def _backlog(self, name: str, here: Position, state: StreamState | None) -> Backlog:
        if state is None:
            return Backlog(here, here, 0, 0)
        end = state.end
        if self._target is not None:
            target = self._target.get(name, here)  # a stream that appeared later is not part of this run
            end = target if ids.parse(target.id) < ids.parse(end.id) else end
        end = self._log.reach(name, here, end, state)
        rows = rows_between(here, end, state)
        is_exact = here.rank is not None and end.rank is not None
        return Backlog(here, end, rows, rows if is_exact else state.length)

    def _should_wait(self, rows: int) -> bool:
        least = self._options.min_rows
        if least is None or rows >= least or self._target is not None:
            return False
        return time.monotonic() - self._took_s < self._options.max_trigger_delay.total_seconds()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  # Spark's name
        """Return the ends of the streams, for the progress of the query: see `penstock.spark.lag`."""
        states = self._retry(lambda: self._look({}))
        return Offsets.at({name: state.end for name, state in states.items() if state is not None}).dump()


def _with_lost(progress: BatchRange, lost: int) -> BatchRange:
    return BatchRange(progress.end, progress.start, progress.cuts, lost)
