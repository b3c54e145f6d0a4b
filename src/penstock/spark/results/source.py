"""The format `penstock_results`: the classes that Spark calls, of which it pickles the readers into tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.results.entry import in_utc
from penstock.spark.results.options import FORMAT, ResultsOptions
from penstock.spark.runtime.arrow_types import arrow_schema
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.source import columns as known
from penstock.spark.source.columns import Columns
from penstock.task import Result

_BATCH = 5_000
_TEXT, _TIMES = pa.string(), [pa.timestamp("us", tz="UTC"), pa.timestamp("us")]
RESULT: Columns = {
    "task_id": [_TEXT],
    "kind": [_TEXT],
    "status": [_TEXT],
    "data": [_TEXT],
    "error": [_TEXT],
    "attempts": [pa.int64()],
    "started_at": _TIMES,
    "finished_at": _TIMES,
}
_MOST = (1 << 63) - 1


class ResultsPartition(InputPartition):
    """What one task reads; None = nothing."""

    def __init__(self, part: Any) -> None:
        super().__init__(None)
        self.part = part


class ResultsReader(Shipped, DataSourceReader):
    """Reads what is stored; a result that is saved while the query runs may be in it or not."""

    def __init__(self, options: ResultsOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        parts = self._options.scan.plan(self._options.matching, self._options.sizes)
        # Where there is no partition, Spark makes one up, of its own kind.
        return [ResultsPartition(part) for part in parts] or [ResultsPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        freeze_gc()
        assert isinstance(partition, ResultsPartition)
        if partition.part is None:
            return
        matching, waiting = self._options.matching, list[Result]()
        for results in self._options.scan.read(partition.part, matching):
            waiting += [result for result in results if matching.takes(result)]
            if len(waiting) >= _BATCH:
                yield _build(waiting, self._schema)
                waiting = []
        if waiting:
            yield _build(waiting, self._schema)


class FilteringResultsReader(ResultsReader):
    """Reads less where a filter of the query says so; Spark applies every filter once more itself.

    A class of its own: Spark refuses every reader that takes filters unless its configuration allows that.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take note of the filters on kind, status and finished_at."""
        self._options = replace(self._options, matching=self._options.matching.narrowed(filters))
        return filters


class ResultsSource(Shipped, DataSource):
    """Results of tasks as a table, for batch queries."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given: Mapping[str, str] = dict(options)

    def schema(self) -> str:
        """Return all columns."""
        return known.ddl(RESULT)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = ResultsOptions.parse(self._given)
        arrow = arrow_schema(schema)
        known.check(arrow, RESULT, ())
        return FilteringResultsReader(options, arrow) if options.filter_pushdown else ResultsReader(options, arrow)


# --- columns: the schema that a user gives is the projection, and only its columns are built ----------


def _build(results: Sequence[Result], schema: pa.Schema) -> pa.RecordBatch:
    """Return results as a batch of the wanted columns."""
    arrays = []
    for field in schema:
        value = _VALUES[field.name]
        arrays.append(pa.array([value(result) for result in results], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _time(moment: datetime | None) -> int | None:
    # Whole microseconds: as datetime, a column without a zone would not take it.
    if moment is None:
        return None
    since = in_utc(moment) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _json(data: Any) -> str | None:
    if data is None:
        return None
    try:
        return msgspec.json.encode(data).decode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(repr(data))  # one odd result must not keep the others from being read


_VALUES: dict[str, Callable[[Result], Any]] = {
    "task_id": lambda result: result.task_id,
    "kind": lambda result: result.kind,
    "status": lambda result: result.status.value,
    "data": lambda result: _json(result.data),
    "error": lambda result: result.error,
    "attempts": lambda result: max(-_MOST, min(result.attempts, _MOST)),
    "started_at": lambda result: _time(result.started_at),
    "finished_at": lambda result: _time(result.finished_at),
}
