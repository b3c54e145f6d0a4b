"""Readers of batch queries. Spark pickles them into tasks: they hold settings, and no connection."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from penstock import ids
from penstock.errors import ConfigurationError, DataLost, GroupLost
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.retry import retry
from penstock.spark.source.catalogue import StreamState
from penstock.spark.source.offsets import IdRange, Position
from penstock.spark.source.options import EARLIEST, Bound, SourceOptions
from penstock.spark.source.partitioning import narrowed, range_between
from penstock.spark.source.redis_log import RedisLog, end_of, log_of, read_ranges
from penstock.spark.source.rows import Entry, RowBuilder
from penstock.sync.redis.client import StreamClient

logger = logging.getLogger("penstock.spark")
_PAGE = 10_000  # of a pending list
_FIELDS = {"group": "group", "consumer": "consumer", "idle_ms": "idle_ms", "deliveries": "deliveries"}


class RangePartition(InputPartition):
    """Ranges of ids that one task reads."""

    def __init__(self, ranges: tuple[IdRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class RangeReader:
    """What a task does: reads its ranges and builds batches. Shared by batch and streaming queries."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self.options, self._rows = options, rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        freeze_gc()
        assert isinstance(partition, RangePartition)
        yield from read_ranges(self.options, self._rows, partition.ranges)


class BatchReader(Shipped, DataSourceReader):
    """Reads what is in the streams when the query begins."""

    def __init__(self, options: SourceOptions, rows: RowBuilder, cores: int = 1) -> None:
        self._options, self._task, self._cores = options, RangeReader(options, rows), cores
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        return retry(self._plan, self._options.retry_timeout.total_seconds())

    def _plan(self) -> Sequence[InputPartition]:
        options, log = self._options, log_of(self._options)
        states = log.look([name for name in log.names() if self._narrowing.wants(name)])
        log.require(states)
        starting = options.starting or Bound(common=EARLIEST)
        ranges = []
        for name, state in states.items():
            if state is not None:
                start, end = self._start(log, name, starting, state), end_of(name, options.ending, state)
                log.check_end(name, end, state)
                whole = range_between(name, start, end, state)
                ranges.append(narrowed(whole, self._narrowing.from_ms, self._narrowing.before_ms))
        shared = log.partitions(ranges, self._cores)
        # Where there is no partition, Spark makes one up, of its own kind.
        return [RangePartition(chosen) for chosen in shared or [()]]

    def _start(self, log: RedisLog, name: str, starting: Bound, state: StreamState) -> Position:
        start = log.start(name, starting, state)
        gap = log.gap(name, start, state)
        if gap is None or gap.count == 0:
            return start
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{gap}. Set option failOnDataLoss=false to read the rest, or begin at a time (startingTimestamp)"
            )
        logger.warning("%s; reading the rest (failOnDataLoss=false)", gap)
        # Of a stream that was created anew the rest may begin earlier, and nobody asked for that.
        return max(start, gap.resume, key=lambda at: ids.parse(at.id))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        return self._task.read(partition)


class FilteringReader(BatchReader):
    """Reads less where a filter of the query says so; Spark applies every filter once more itself.

    A class of its own: Spark refuses every reader that takes filters unless its configuration allows that.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take note of the filters on timestamp, ms and stream."""
        self._narrowing = Narrowing.of(filters)
        return filters


class PendingPartition(InputPartition):
    """Streams whose pending lists one task reads."""

    def __init__(self, streams: tuple[str, ...]) -> None:
        super().__init__(None)
        self.streams = streams


class PendingReader(Shipped, DataSourceReader):
    """Reads what the consumers of a group hold and have not settled."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """One task for all streams: pending lists are short beside the streams themselves."""
        client = self._options.link.client()
        names = retry(lambda: self._options.stream_names(client), self._options.retry_timeout.total_seconds())
        return [PendingPartition(tuple(names))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pending lists; called in a task."""
        assert isinstance(partition, PendingPartition)
        assert self._options.group is not None
        return pending_rows(self._options.link.client(), partition.streams, self._options.group, self._schema)


@dataclass(frozen=True)
class Narrowing:
    """The times [from, before) and the streams to which a query can be narrowed; None = no limit.

    Filters never narrow it to ids, which Spark orders as texts and Redis does not.
    """

    from_ms: int | None = None
    before_ms: int | None = None
    streams: frozenset[str] | None = None

    def wants(self, stream: str) -> bool:
        """Tell whether the query looks at the stream."""
        return self.streams is None or stream in self.streams

    @classmethod
    def of(cls, filters: Sequence[Filter]) -> Narrowing:
        """Return what all filters together allow."""
        narrowing = cls()
        for given in filters:
            narrowing = _narrowed(narrowing, given)
        return narrowing


def _narrowed(narrowing: Narrowing, given: Filter) -> Narrowing:
    if isinstance(given, EqualTo | In) and given.attribute == ("stream",):
        names = frozenset(given.value if isinstance(given, In) else [given.value])
        return replace(narrowing, streams=names if narrowing.streams is None else narrowing.streams & names)
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return narrowing
    ms = _milliseconds(given.attribute, given.value)
    if ms is None:
        return narrowing
    if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
        # An entry of the very millisecond may be wanted or not: it is read, and Spark decides.
        low = math.floor(ms)
        narrowing = replace(narrowing, from_ms=low if narrowing.from_ms is None else max(low, narrowing.from_ms))
    if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
        high = math.floor(ms) + 1
        narrowing = replace(
            narrowing, before_ms=high if narrowing.before_ms is None else min(high, narrowing.before_ms)
        )
    return narrowing


def _milliseconds(attribute: tuple[str, ...], value: object) -> float | None:
    if attribute == ("ms",) and isinstance(value, int):
        return value
    if attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp() * 1000
    return None


def pending_rows(
    client: StreamClient, streams: Sequence[str], group: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Return what is pending in the group, page by page."""
    # Written as entries with fields, so that the columns are built by the one builder there is.
    builder = RowBuilder(schema, names=_FIELDS)
    for stream in streams:
        key, start = client.keys(stream).stream, "-"
        while True:
            try:
                rows = client.call(key, "XPENDING", key, group, start, "+", _PAGE)
            except GroupLost as error:
                raise ConfigurationError(f"stream {stream!r} has no consumer group {group!r}: {error}") from error
            if rows:
                yield builder.build([(stream, [_as_entry(row, group) for row in rows])])
            if len(rows) < _PAGE:
                break
            start = "(" + rows[-1][0].decode()


def _as_entry(row: tuple[bytes, bytes, int, int], group: str) -> Entry:
    entry_id, consumer, idle_ms, deliveries = row
    fields = [b"group", group.encode(), b"consumer", consumer, b"idle_ms", b"%d" % idle_ms, b"deliveries"]
    return entry_id, [*fields, b"%d" % deliveries]
