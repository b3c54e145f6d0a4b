"""Pipelines: streams to tables, declared once, run anywhere Spark runs."""

from penstock.spark.pipeline.declaration import Pipeline
from penstock.spark.pipeline.sinks import Console, Delta, Iceberg, Jdbc, Parquet, Postgres, RedisStreams, Results
from penstock.spark.pipeline.source import Source
from penstock.spark.pipeline.steps import Function, Handler, Sql

__all__ = [
    "Console",
    "Delta",
    "Function",
    "Handler",
    "Iceberg",
    "Jdbc",
    "Parquet",
    "Pipeline",
    "Postgres",
    "RedisStreams",
    "Results",
    "Source",
    "Sql",
]
