"""The format `penstock_results`: the class that Spark calls."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from penstock.spark.arrow_types import arrow_schema
from penstock.spark.reading import columns as known
from penstock.spark.results.columns import RESULT
from penstock.spark.results.options import FORMAT, ResultsOptions
from penstock.spark.results.reader import FilteringResultsReader, ResultsReader


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
