"""Readers of batch queries. Spark pickles them into tasks: they hold settings, and no connection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

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
from penstock.errors import ConfigurationError, GroupLost
from penstock.spark.format.log import log_of
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.link import retry
from penstock.spark.source.catalogue import StreamState, report_loss
from penstock.spark.source.offsets import IdRange, Position
from penstock.spark.source.options import EARLIEST, Bound, SourceOptions
from penstock.spark.source.partitioning import narrowed, range_between
from penstock.spark.source.redis_log import RedisLog, end_of, read_ranges
from penstock.spark.source.rows import Entry, RowBuilder
from penstock.sync.redis.client import StreamClient

T = TypeVar("T")
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_PAGE = 10_000  # of a pending list
_FIELDS = {"group": "group", "consumer": "consumer", "idle_ms": "idle_ms", "deliveries": "deliveries"}


class RangePartition(InputPartition):
    """Ranges of ids that one task reads."""

    def __init__(self, ranges: tuple[IdRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_partition(options: SourceOptions, rows: RowBuilder, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the ranges of a task and build batches, for batch and streaming queries."""
    freeze_gc()
    assert isinstance(partition, RangePartition)
    yield from read_ranges(log_of(options), rows, partition.ranges)


class BatchReader(Shipped, DataSourceReader):
    """Reads what is in the streams when the query begins."""

    def __init__(self, options: SourceOptions, rows: RowBuilder, cores: int = 1) -> None:
        self._options, self._rows, self._cores = options, rows, cores
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
        hint = "Set option failOnDataLoss=false to read the rest, or start at a time (startingTimestamp)"
        then = "reading the rest (failOnDataLoss=false)"
        report_loss(gap, hint, fails=self._options.fail_on_data_loss, then=then)
        # If the stream was created again, the rest may begin before the requested start.
        return max(start, gap.resume, key=lambda at: ids.parse(at.id))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        return read_partition(self._options, self._rows, partition)


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
        """One task for all streams: pending lists are short compared with streams."""
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
        """Return whether the query reads the stream."""
        return self.streams is None or stream in self.streams

    @classmethod
    def of(cls, filters: Sequence[Filter]) -> Narrowing:
        """Return what all filters together allow."""
        # An entry of the very millisecond may be wanted or not: it is read, and Spark decides.
        times = [bounds_of(filters, "ms", _whole), bounds_of(filters, "timestamp", _milliseconds)]
        lows = [math.floor(low) for low, _ in times if low is not None]
        highs = [math.floor(high) + 1 for _, high in times if high is not None]
        return cls(max(lows, default=None), min(highs, default=None), values_of(filters, "stream"))


def _whole(value: object) -> float | None:
    return value if isinstance(value, int) else None


def _milliseconds(value: object) -> float | None:
    return value.timestamp() * 1000 if isinstance(value, datetime) and value.tzinfo is not None else None


def values_of(filters: Sequence[Filter], column: str) -> frozenset[Any] | None:
    """Return the values that filters allow in a column; None = any."""
    found: frozenset[Any] | None = None
    for given in filters:
        if isinstance(given, EqualTo | In) and given.attribute == (column,):
            values = frozenset(given.value if isinstance(given, In) else [given.value])
            found = values if found is None else found & values
    return found


def bounds_of(filters: Sequence[Filter], column: str, read: Callable[[object], T | None]) -> tuple[T | None, T | None]:
    """Return the least and the greatest value that filters allow in a column, both inclusive; None = no limit.

    Spark applies each filter once more, so they may be too wide. `read` returns None for what says nothing.
    """
    lows, highs = list[Any](), list[Any]()
    for given in filters:
        if not isinstance(given, _COMPARISONS) or given.attribute != (column,) or (value := read(given.value)) is None:
            continue
        if not isinstance(given, LessThan | LessThanOrEqual):
            lows.append(value)
        if not isinstance(given, GreaterThan | GreaterThanOrEqual):
            highs.append(value)
    return max(lows, default=None), min(highs, default=None)


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
