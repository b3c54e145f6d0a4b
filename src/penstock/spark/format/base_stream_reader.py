"""What every reader of streaming queries does, whatever Spark asks it: finds its streams, begins, and reads ranges.

Also the reader for Spark 4.1, which does not pass the start of a batch when it asks for its end. So a batch takes
everything available, with at most one task per stream, and missing entries are found when it is planned. Limits and
archives need the start.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock import ids
from penstock.errors import ConfigurationError, GroupLost, ServerError, StreamMissing
from penstock.redis.retry import Repeat
from penstock.spark.format.batch_reader import RangePartition, read_partition
from penstock.spark.format.log import log_of
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.link import retry
from penstock.spark.source.catalogue import Gap, StreamState, look_at_group, report_loss
from penstock.spark.source.offsets import BatchRange, Offset, Offsets, Position, batch_of, first, opened
from penstock.spark.source.options import LATEST, Bound, SourceOptions
from penstock.spark.source.partitioning import pack
from penstock.spark.source.redis_log import RedisLog
from penstock.spark.source.rows import RowBuilder
from penstock.sync.redis.client import StreamClient

_DISCOVER_EVERY_S = 1.0
_HINT = (
    "Set option failOnDataLoss=false to continue without them, and a consumer group (option group) so that "
    "retention keeps what this query has not read yet"
)
T = TypeVar("T")


class BaseStreamReader(Shipped, DataSourceStreamReader):
    """Watches streams on the driver, and reads ranges of them in tasks."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self._options, self._rows = options, rows
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
        return Offsets.at({name: self._log.start(name, starting, state) for name, state in states.items()}).dump()

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

        PySpark would try to report it to Spark, and end with a traceback in the user's terminal.
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
        """Return what is missing after a position; raise DataLost unless the query may continue without it."""
        gap = self._log.gap(name, here, state)
        if gap is not None and gap.count != 0:
            report_loss(gap, _HINT, fails=self._options.fail_on_data_loss)
        return gap

    def _retry(self, step: Callable[[], T]) -> T:
        return retry(step, self._options.retry_timeout.total_seconds())

    # --- in a task ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        return read_partition(self._options, self._rows, partition)


class GroupCursor:
    """Shows the progress of a query as a consumer group: monitoring and retention see it like any other consumer.

    The checkpoint remains authoritative. The group follows committed batches only, so that retention keeps the rest.
    """

    def __init__(self, client: StreamClient, group: str, is_forced: bool) -> None:
        self._client, self._group, self._is_forced = client, group, is_forced
        self._shown: dict[str, Position] = {}

    def show(self, stream: str, at: Position) -> None:
        """Move the group to a position; create it if it does not exist."""
        if self._shown.get(stream) == at:
            return
        key = self._client.keys(stream).stream
        if stream not in self._shown:
            self._take_over(stream, key, at)
        try:
            self._move(key, at)
        except GroupLost:  # it was destroyed, or the stream was deleted and created again
            self._take_over(stream, key, at)
            self._move(key, at)
        self._shown[stream] = at

    def _take_over(self, stream: str, key: str, at: Position) -> None:
        try:
            self._client.call(key, "XGROUP", "CREATE", key, self._group, at.id, repeat=Repeat.IDEMPOTENT)
        except ServerError as error:
            if "BUSYGROUP" not in str(error):
                raise
        info = look_at_group(self._client, stream, self._group) or {}
        if (info.get(b"consumers") or info.get(b"pending")) and not self._is_forced:
            raise ConfigurationError(
                f"group {self._group!r} of stream {stream!r} has {info[b'consumers']} consumers and "
                f"{info[b'pending']} pending messages: moving it would make its workers skip messages. Use a "
                "separate group for the query, or set option groupForce=true if those consumers no longer run"
            )

    def _move(self, key: str, at: Position) -> None:
        # Without the rank, the server cannot compute the lag after SETID. Servers that do not count entries (before
        # 7.0) do not support the argument; there, no position has a rank.
        counted = () if at.rank is None else ("ENTRIESREAD", at.rank)
        self._client.call(key, "XGROUP", "SETID", key, self._group, at.id, *counted, repeat=Repeat.IDEMPOTENT)


def check_unlimited(options: SourceOptions) -> None:
    """Raise ConfigurationError for options that Spark 4.1 leaves no room for."""
    given = {
        "maxRowsPerTrigger (max_rows_per_batch of a pipeline)": options.max_rows,
        "maxBytesPerTrigger": options.max_bytes, "minRowsPerTrigger": options.min_rows, "archive": options.archive,
    }  # fmt: skip
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigurationError(
            f"{' and '.join(names)} in a streaming query needs Spark 4.2 or newer; in older versions a batch "
            "reads everything available: remove it"
        )


class Spark41Reader(BaseStreamReader):
    """Reads streams as they grow, everything available at a time."""

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        return first(Offsets.load(super().initialOffset()))

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  # as Spark 4.1 asks
        """Return the ends of the streams. Spark may call this before it has passed the start of the query."""
        begun = self._begun()
        states = self._retry(lambda: self._look({}))
        found = {name: (begun.get(name), state) for name, state in states.items() if state is not None}
        return opened(Offsets({name: self._upto(name, *both) for name, both in found.items()}))

    def _begun(self) -> Mapping[str, Position]:
        try:
            return Offsets.load(self.initialOffset()).positions()
        except StreamMissing as error:  # also of a query that was restarted: the two look the same here
            raise StreamMissing(
                f"{error}. If this query has read it before, the stream was deleted together with its unread entries"
            ) from None

    def _upto(self, name: str, begun: Position | None, state: StreamState) -> BatchRange:
        end, start = state.end, begun or Position(ids.ZERO, 0)
        is_ahead = ids.parse(start.id) > ids.parse(end.id) and self._log.gap(name, start, state) is None
        return BatchRange(start if is_ahead else end, start)  # ahead: a query may start at a time in the future

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Everything before `start` is committed, unless there is no batch."""
        if start == end:
            return []
        return self._tasks(self._retry(lambda: self._checked(Offsets.load(start), batch_of(start, end))))

    def _checked(self, at: Offsets, planned: Offsets) -> Offsets:
        streams = dict(planned.streams)
        for name, state in self._look(at.streams).items():
            if name not in at.streams:
                continue
            here = streams[name].start if name in streams else at.streams[name].end
            gap = self._gap(name, here, state)
            if gap is not None and name in streams:
                here = gap.resume
                streams[name] = BatchRange(streams[name].end, here, streams[name].cuts)
            if state is not None:
                self._show(name, here)
        return Offsets(streams)
