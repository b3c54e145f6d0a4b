"""The writer for each kind of sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.spark.pipeline.shared_files import files_of
from penstock.spark.pipeline.sink_options import Console, Delta, Iceberg, Jdbc, Parquet, Postgres, Results, Sink
from penstock.spark.pipeline.sinks.console import ConsoleWriter
from penstock.spark.pipeline.sinks.delta import DeltaSparkWriter, DeltaWriter, uses_jars
from penstock.spark.pipeline.sinks.iceberg import IcebergSparkWriter, IcebergWriter, is_for_jars
from penstock.spark.pipeline.sinks.jdbc import JdbcWriter
from penstock.spark.pipeline.sinks.parquet import ParquetWriter
from penstock.spark.pipeline.sinks.postgres import PostgresWriter
from penstock.spark.pipeline.sinks.redis_streams import RedisStreamsWriter
from penstock.spark.pipeline.sinks.results import ResultsWriter
from penstock.spark.pipeline.sinks.writer import Writer
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.runtime.master import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def writer_of(sink: Sink, pipeline: Pipeline, spark: SparkSession) -> Writer:
    """Return the writer for a sink; raise ConfigurationError if there is none on such a session."""
    if is_connect(spark) and (isinstance(sink, Jdbc) or getattr(sink, "library", None) == "spark"):
        raise ConfigurationError(
            "it needs the Java of the driver, which Spark Connect does not show: use the sink postgres, a table "
            "without library = 'spark', or a --master such as spark://host:7077"
        )
    if isinstance(sink, Parquet | Delta | Iceberg):
        return _of_files(sink, spark)
    if isinstance(sink, Postgres):
        return PostgresWriter(sink)
    if isinstance(sink, Jdbc):
        return JdbcWriter(sink, spark)
    if isinstance(sink, Results):
        return ResultsWriter(sink)
    if isinstance(sink, Console):
        return ConsoleWriter(sink)
    return RedisStreamsWriter(sink, pipeline.source)


def _of_files(sink: Parquet | Delta | Iceberg, spark: SparkSession) -> Writer:
    files = files_of(spark)
    if isinstance(sink, Parquet):
        return ParquetWriter(sink, files)
    if isinstance(sink, Iceberg):
        return IcebergSparkWriter(sink, spark) if is_for_jars(sink, spark) else IcebergWriter(sink, files)
    return DeltaSparkWriter(sink, spark) if uses_jars(sink, spark) else DeltaWriter(sink, files)
