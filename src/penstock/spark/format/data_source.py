"""The format `redis_streams`: the class that Spark calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.format import columns as known
from penstock.spark.format.batch_reader import BatchReader, FilteringReader, PendingReader
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.versions import arrow_schema, has_read_limits
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import RowBuilder


class RedisStreamsSource(Shipped, DataSource):
    """Streams of Redis or Valkey as tables: read, readStream, write and writeStream."""

    # Of the session, which registers a class that knows it; Spark may also find this one by itself, which does not.
    cores: ClassVar[int | None] = None

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
        return ", ".join(part for part in (known.ddl(columns), known.payload_ddl(options, columns)) if part)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = SourceOptions.parse(self._given)
        options.check_batch()
        if options.view == "pending":
            arrow = arrow_schema(schema)
            known.check(arrow, known.PENDING, ())
            return PendingReader(options, arrow)
        rows = _row_builder(options, schema)
        reader = FilteringReader if options.filter_pushdown else BatchReader
        return reader(options, rows, self.cores or os.cpu_count() or 1)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a streaming query."""
        options = SourceOptions.parse(self._given)
        options.check_streaming()
        rows = _row_builder(options, schema)
        if has_read_limits():
            from penstock.spark.format.stream_reader import StreamReader  # of classes that Spark 4.1 has not

            return StreamReader(options, rows)
        from penstock.spark.format.base_stream_reader import Spark41Reader, check_unlimited

        check_unlimited(options)
        return Spark41Reader(options, rows)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from penstock.spark.sink.writer import BatchWriter, checked_options  # a reader's process need not load it

        return BatchWriter(checked_options(self._given, schema, overwrite=overwrite, is_streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        """Return the writer of a streaming query."""
        from penstock.spark.sink.writer import StreamWriter, checked_options

        return StreamWriter(checked_options(self._given, schema, overwrite=overwrite, is_streaming=True))


def of_session(cores: int) -> type[RedisStreamsSource]:
    """Return the format for a session with this number of cores."""
    # Spark pickles it by value: it is not what its name stands for in this module.
    return type(RedisStreamsSource.__name__, (RedisStreamsSource,), {"cores": cores, "__module__": __name__})


def _columns(options: SourceOptions) -> known.Columns:
    if options.columns == "kafka":
        return known.KAFKA
    return {"entries": known.ENTRY, "dead_letters": known.DEAD_LETTER, "pending": known.PENDING}[options.view]


def _row_builder(options: SourceOptions, schema: StructType) -> RowBuilder:
    arrow = arrow_schema(schema)
    columns = _columns(options)
    payload = known.payload_columns(options, columns, arrow)
    known.check(arrow, columns, payload.names)
    protected_by = options.link if options.link.protection_file is not None else None
    return RowBuilder(
        arrow, payload.format, options.payload.field, options.payload.column, protected_by=protected_by
    )  # fmt: skip
