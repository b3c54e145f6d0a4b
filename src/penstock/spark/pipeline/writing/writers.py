"""The writer for each kind of sink."""

from __future__ import annotations

from penstock.spark.pipeline.declaration import Pipeline
from penstock.spark.pipeline.files import Files
from penstock.spark.pipeline.sinks import Console, Delta, Parquet, Postgres, Sink
from penstock.spark.pipeline.writing.console import ConsoleWriter
from penstock.spark.pipeline.writing.delta import DeltaWriter
from penstock.spark.pipeline.writing.parquet import ParquetWriter
from penstock.spark.pipeline.writing.postgres import PostgresWriter
from penstock.spark.pipeline.writing.redis_streams import RedisStreamsWriter
from penstock.spark.pipeline.writing.writer import Writer


def writer_of(sink: Sink, pipeline: Pipeline, files: Files) -> Writer:
    """Return the writer for a sink."""
    if isinstance(sink, Parquet):
        return ParquetWriter(sink, files)
    if isinstance(sink, Delta):
        return DeltaWriter(sink, files)
    if isinstance(sink, Postgres):
        return PostgresWriter(sink)
    if isinstance(sink, Console):
        return ConsoleWriter(sink)
    return RedisStreamsWriter(sink, pipeline.source)
