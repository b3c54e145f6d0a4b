"""What every reader of streaming queries does, whatever Spark asks it: finds its streams, begins, and reads ranges."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.errors import DataLost
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.retry import retry
from penstock.spark.source.batch_reader import RangePartition, RangeReader
from penstock.spark.source.catalogue import StreamState
from penstock.spark.source.group_cursor import GroupCursor
from penstock.spark.source.loss import Gap
from penstock.spark.source.offsets import BatchRange, Offset, Offsets, Position, batch_of
from penstock.spark.source.options import LATEST, Bound, SourceOptions
from penstock.spark.source.partitioning import pack
from penstock.spark.source.redis_log import RedisLog, log_of
from penstock.spark.source.rows import RowBuilder

logger = logging.getLogger("penstock.spark")
_DISCOVER_EVERY_S = 1.0
T = TypeVar("T")


class BaseStreamReader(Shipped, DataSourceStreamReader):
    """Watches streams on the driver, and reads ranges of them in tasks."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self._options, self._task = options, RangeReader(options, rows)
        self._initial: Offset | None = None
        self._cursor: GroupCursor | None = None
        self._names: list[str] = []
        self._discovered_s = -1e9

    # --- on the driver ------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return where a new query begins. Asked for twice, and answered once: `latest` moves."""
        if self._initial is None:
            self._initial = self._retry(self._begin)
        return self._initial

    def _begin(self) -> Offset:
        states = self._look({})
        self._log.require(states)
        starting = self._options.starting or Bound(common=LATEST)
        found = {}
        for name, state in states.items():
            position = self._log.start(name, starting, state)
            found[name] = BatchRange(position, position)
        return Offsets(found).dump()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch: what its end says, and nothing else."""
        return [] if start == end else self._tasks(batch_of(start, end))

    def _tasks(self, planned: Offsets) -> Sequence[InputPartition]:
        most_rows, least = self._options.max_rows_per_partition, self._options.streaming_partitions
        pieces = [piece for name in sorted(planned.streams) for piece in planned.streams[name].pieces(name)]
        return [RangePartition(chosen) for chosen in pack(pieces, most_rows, least)]

    def commit(self, end: Offset) -> None:
        """Do nothing: it comes a batch late, and never for the last one. The group moves when the next is planned."""

    def stop(self) -> None:
        """End this process, which has nothing but this reader, if Spark has hung up: the query was stopped.

        PySpark would try to tell Spark of it, and end with a traceback in the terminal of the user.
        """
        if isinstance(sys.exception(), EOFError | ConnectionError):  # errors of Redis are not among these
            os._exit(0)

    @property
    def _log(self) -> RedisLog:
        return log_of(self._options)

    def _look(self, already: Mapping[str, BatchRange]) -> Mapping[str, StreamState | None]:
        now = time.monotonic()
        if now - self._discovered_s > _DISCOVER_EVERY_S or not self._names:
            self._names, self._discovered_s = self._log.names(), now
        # One that a pattern found and finds no longer has been deleted, which must not go unnoticed.
        known = already if self._options.selection.is_pattern else ()
        return self._log.look(list(dict.fromkeys([*known, *self._names])))

    def _show(self, name: str, here: Position) -> None:
        # Before the first entry of a stream is read, too: retention would not wait for a group that is not there.
        if self._options.group is None:
            return
        if self._cursor is None:
            self._cursor = GroupCursor(self._options.link.client(), self._options.group, self._options.group_force)
        self._cursor.show(name, here)

    def _gap(self, name: str, here: Position, state: StreamState | None) -> Gap | None:
        """Return what is missing behind a position; raise DataLost unless the query may go on without it."""
        gap = self._log.gap(name, here, state)
        if gap is None or gap.count == 0:
            return gap
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{gap}. Set option failOnDataLoss=false to go on without them, and a consumer group (option group) so "
                "that retention keeps what this query has yet to read"
            )
        logger.warning("%s; going on without them (failOnDataLoss=false)", gap)
        return gap

    def _retry(self, step: Callable[[], T]) -> T:
        return retry(step, self._options.retry_timeout.total_seconds())

    # --- in a task ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        return self._task.read(partition)
