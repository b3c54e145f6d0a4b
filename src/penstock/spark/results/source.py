"""The format `penstock_results`: the classes that Spark calls, of which it pickles the readers into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.arrow_types import arrow_schema
from penstock.spark.collector import spare_the_collector
from penstock.spark.reading import columns as known
from penstock.spark.results.columns import RESULT, build
from penstock.spark.results.options import FORMAT, ResultsOptions
from penstock.task import Result

_BATCH = 5_000


class ResultsPartition(InputPartition):
    """What one task reads; None = nothing."""

    def __init__(self, part: Any) -> None:
        super().__init__(None)
        self.part = part


class ResultsReader(DataSourceReader):
    """Reads what is stored; a result that is saved while the query runs may be in it or not."""

    def __init__(self, options: ResultsOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        parts = self._options.shelf.plan(self._options.wanted, self._options.sizes)
        # Where there is no partition, Spark makes one up, of its own kind.
        return [ResultsPartition(part) for part in parts] or [ResultsPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        spare_the_collector()
        assert isinstance(partition, ResultsPartition)
        if partition.part is None:
            return
        wanted, waiting = self._options.wanted, list[Result]()
        for results in self._options.shelf.read(partition.part, wanted):
            waiting += [result for result in results if wanted.takes(result)]
            if len(waiting) >= _BATCH:
                yield build(waiting, self._schema)
                waiting = []
        if waiting:
            yield build(waiting, self._schema)


class FilteringResultsReader(ResultsReader):
    """Reads less where a filter of the query says so; Spark applies every filter once more itself.

    A class of its own: Spark refuses every reader that takes filters unless its configuration allows that.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take note of the filters on kind, status and finished_at."""
        self._options = replace(self._options, wanted=self._options.wanted.narrowed(filters))
        return filters


class ResultsSource(DataSource):
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
