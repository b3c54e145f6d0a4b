"""The reader of streaming queries: offsets on the driver, ranges of ids in the tasks.

On the driver one instance lives as long as the query and is asked, batch by batch: where does the next batch end, and
which tasks does it have? Everything it needs to answer the second question is in the answer to the first (offsets.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock import ids
from penstock.errors import DataLost
from penstock.spark.patience import patiently
from penstock.spark.reading.admission import Backlog, Limits, Planner
from penstock.spark.reading.batch_reader import RangePartition, TaskReader
from penstock.spark.reading.catalogue import StreamState
from penstock.spark.reading.group_cursor import GroupCursor
from penstock.spark.reading.holdings import Holdings, holdings_of
from penstock.spark.reading.offsets import Offset, Offsets, Position, Progress
from penstock.spark.reading.options import EARLIEST, LATEST, Bound, SourceOptions
from penstock.spark.reading.planner import pack
from penstock.spark.reading.planning import rows_between
from penstock.spark.reading.rows import RowBuilder

logger = logging.getLogger("penstock.spark")
_DISCOVER_EVERY_S = 1.0
T = TypeVar("T")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self._options, self._task = options, TaskReader(options, rows)
        self._initial: Offset | None = None
        self._target: Mapping[str, Position] | None = None  # of Trigger.AvailableNow
        self._cursor: GroupCursor | None = None
        self._names: list[str] = []
        self._discovered_s = -1e9
        self._took_s = time.monotonic()  # when the last batch began

    # --- on the driver ------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return where a new query begins. Asked for twice, and answered once: `latest` moves."""
        if self._initial is None:
            self._initial = self._patiently(self._begin)
        return self._initial

    def _begin(self) -> Offset:
        states = self._look({})
        self._holdings.require(states)
        starting = self._options.starting or Bound(common=LATEST)
        found = {}
        for name, state in states.items():
            position = self._holdings.start(name, starting, state)
            found[name] = Progress(position, position)
        return Offsets(found).dump()

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
        """Fix the end of the query: what is there now, and nothing that comes later."""
        states = self._patiently(lambda: self._look({}))
        self._target = {name: Position(s.last_id, s.added) for name, s in states.items() if s is not None}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Return where the next batch ends. Everything up to `start` is committed when this is asked."""
        return self._patiently(lambda: self._next(start, limit))

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
        limits = Limits() if is_unlimited else Limits(self._options.max_rows, self._options.max_bytes)
        planned = Planner(self._holdings).plan(backlogs, limits)
        self._took_s = time.monotonic()
        # A stream that is not asked for any more keeps its place, should it be asked for again.
        resting = {name: Progress(progress.end, progress.end) for name, progress in at.streams.items()}
        taken = resting | planned
        return Offsets({name: _with_lost(progress, lost.get(name, 0)) for name, progress in taken.items()}).dump()

    def _checked(self, name: str, at: Offsets, state: StreamState | None, lost: dict[str, int]) -> Position:
        if name not in at.streams:
            # Appeared since the query began: read from its first entry on.
            return self._holdings.start(name, Bound(common=EARLIEST), state)
        here = at.streams[name].end
        gap = self._holdings.gap(name, here, state)
        if gap is None or gap.count == 0:
            return here if gap is None else gap.resume
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{gap}. Set option failOnDataLoss=false to go on without them, and a consumer group (option group) so "
                "that retention keeps what this query has yet to read"
            )
        logger.warning("%s; going on without them (failOnDataLoss=false)", gap)
        lost[name] = lost.get(name, 0) + (gap.count or 1)
        return gap.resume

    def _backlog(self, name: str, here: Position, state: StreamState | None) -> Backlog:
        if state is None:
            return Backlog(here, here, 0, 0)
        end = Position(state.last_id, state.added)
        if self._target is not None:
            target = self._target.get(name, here)  # a stream that appeared later is not part of this run
            end = target if ids.parse(target.id) < ids.parse(end.id) else end
        end = self._holdings.reach(name, here, end, state)
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
        states = self._patiently(lambda: self._look({}))
        ends = {name: Position(state.last_id, state.added) for name, state in states.items() if state is not None}
        return Offsets({name: Progress(end, end) for name, end in ends.items()}).dump()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch: what its end says, and nothing else."""
        if start == end:
            return []
        options, planned = self._options, Offsets.load(end)
        pieces = [piece for name in sorted(planned.streams) for piece in planned.streams[name].pieces(name)]
        return [
            RangePartition(chosen) for chosen in pack(pieces, options.max_rows_per_partition, options.min_partitions)
        ]

    def commit(self, end: Offset) -> None:
        """Do nothing: it comes a batch late, and never for the last one. The group moves when the next is planned."""

    @property
    def _holdings(self) -> Holdings:
        return holdings_of(self._options)

    def _look(self, already: Mapping[str, Progress]) -> Mapping[str, StreamState | None]:
        now = time.monotonic()
        if now - self._discovered_s > _DISCOVER_EVERY_S or not self._names:
            self._names, self._discovered_s = self._holdings.names(), now
        # One that a pattern found and finds no longer has been deleted, which must not go unnoticed.
        known = already if self._options.selection.is_pattern else ()
        return self._holdings.look(list(dict.fromkeys([*known, *self._names])))

    def _show(self, name: str, here: Position) -> None:
        # Before the first entry of a stream is read, too: retention would not wait for a group that is not there.
        if self._options.group is None:
            return
        if self._cursor is None:
            self._cursor = GroupCursor(self._options.link.client(), self._options.group, self._options.group_force)
        self._cursor.show(name, here)

    def _patiently(self, step: Callable[[], T]) -> T:
        return patiently(step, self._options.retry_timeout.total_seconds())

    # --- in a task ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        return self._task.read(partition)


def _with_lost(progress: Progress, lost: int) -> Progress:
    return Progress(progress.end, progress.start, progress.cuts, lost)
