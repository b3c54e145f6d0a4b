"""Readers of batch queries. Spark pickles them into tasks: they hold settings, and no connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.spark.collector import spare_the_collector
from penstock.spark.patience import patiently
from penstock.spark.reading.holdings import holdings_of
from penstock.spark.reading.offsets import IdRange
from penstock.spark.reading.options import EARLIEST, Bound, SourceOptions
from penstock.spark.reading.pending import pending_rows
from penstock.spark.reading.planning import narrowed, range_between
from penstock.spark.reading.positions import end_of
from penstock.spark.reading.pushdown import Narrowing
from penstock.spark.reading.ranges import read_ranges
from penstock.spark.reading.rows import RowBuilder


class RangePartition(InputPartition):
    """Ranges of ids that one task reads."""

    def __init__(self, ranges: tuple[IdRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class TaskReader:
    """What a task does: reads its ranges and builds batches. Shared by batch and streaming queries."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self.options, self._rows = options, rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        spare_the_collector()
        assert isinstance(partition, RangePartition)
        yield from read_ranges(self.options, self._rows, partition.ranges)


class BatchReader(DataSourceReader):
    """Reads what is in the streams when the query begins."""

    def __init__(self, options: SourceOptions, rows: RowBuilder) -> None:
        self._options, self._task = options, TaskReader(options, rows)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        return patiently(self._plan, self._options.retry_timeout.total_seconds())

    def _plan(self) -> Sequence[InputPartition]:
        options, holdings = self._options, holdings_of(self._options)
        states = holdings.look([name for name in holdings.names() if self._narrowing.wants(name)])
        holdings.require(states)
        starting = options.starting or Bound(common=EARLIEST)
        ranges = []
        for name, state in states.items():
            if state is not None:
                start, end = holdings.start(name, starting, state), end_of(name, options.ending, state)
                holdings.check_end(name, end, state)
                whole = range_between(name, start, end, state)
                ranges.append(narrowed(whole, self._narrowing.from_ms, self._narrowing.before_ms))
        shared = holdings.partitions(ranges)
        # Where there is no partition, Spark makes one up, of its own kind.
        return [RangePartition(chosen) for chosen in shared or [()]]

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


class PendingReader(DataSourceReader):
    """Reads what the consumers of a group hold and have not settled."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """One task for all streams: pending lists are short beside the streams themselves."""
        client = self._options.link.client()
        names = patiently(lambda: self._options.stream_names(client), self._options.retry_timeout.total_seconds())
        return [PendingPartition(tuple(names))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pending lists; called in a task."""
        assert isinstance(partition, PendingPartition)
        assert self._options.group is not None
        return pending_rows(self._options.link.client(), partition.streams, self._options.group, self._schema)
