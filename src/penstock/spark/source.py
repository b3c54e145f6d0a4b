"""The format `redis_streams`: the class that Spark calls."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.arrow_types import arrow_schema
from penstock.spark.prerequisites import has_read_limits
from penstock.spark.reading import columns as known
from penstock.spark.reading import payload_columns
from penstock.spark.reading.batch_reader import BatchReader, FilteringReader, PendingReader
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.rows import RowBuilder


class RedisStreamsSource(DataSource):
    """Streams of Redis or Valkey as tables: read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "redis_streams"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given: Mapping[str, str] = dict(options)

    def schema(self) -> str:
        """Return all columns, those of the payload included."""
        options = SourceOptions.parse(self._given)
        columns = _columns(options)
        return ", ".join(part for part in (known.ddl(columns), payload_columns.ddl(options, columns)) if part)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = SourceOptions.parse(self._given)
        options.check_batch()
        if options.view == "pending":
            arrow = arrow_schema(schema)
            known.check(arrow, known.PENDING, ())
            return PendingReader(options, arrow)
        rows = _row_builder(options, schema)
        return FilteringReader(options, rows) if options.filter_pushdown else BatchReader(options, rows)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a streaming query."""
        options = SourceOptions.parse(self._given)
        options.check_streaming()
        rows = _row_builder(options, schema)
        if has_read_limits():
            from penstock.spark.reading.stream_reader import StreamReader  # of classes that Spark 4.1 has not

            return StreamReader(options, rows)
        from penstock.spark.reading.unlimited_reader import UnlimitedReader, check_unlimited

        check_unlimited(options)
        return UnlimitedReader(options, rows)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from penstock.spark.sink import make_writer  # a reader's process need not load it

        return make_writer(self._given, schema, overwrite, is_streaming=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        """Return the writer of a streaming query."""
        from penstock.spark.sink import make_writer

        return make_writer(self._given, schema, overwrite, is_streaming=True)


def _columns(options: SourceOptions) -> known.Columns:
    return {"entries": known.ENTRY, "dead_letters": known.DEAD_LETTER, "pending": known.PENDING}[options.view]


def _row_builder(options: SourceOptions, schema: StructType) -> RowBuilder:
    arrow = arrow_schema(schema)
    columns = _columns(options)
    payload = payload_columns.chosen(options, columns, arrow)
    known.check(arrow, columns, payload.names)
    protected_by = options.link if options.link.protection_file is not None else None
    return RowBuilder(
        arrow, payload.format, options.payload.field, options.payload.column, protected_by=protected_by
    )  # fmt: skip
