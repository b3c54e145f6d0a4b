"""Pipelines: streams to tables, declared once, run anywhere Spark runs."""

from penstock.spark.pipeline.sink_options import Console, Delta, Iceberg, Jdbc, Parquet, Postgres, RedisStreams, Results
from penstock.spark.pipeline.spec import Lineage, Pipeline, Source
from penstock.spark.pipeline.steps import Function, Handler, Rule, Sql

__all__ = [
    "Console",
    "Delta",
    "Function",
    "Handler",
    "Iceberg",
    "Jdbc",
    "Lineage",
    "Parquet",
    "Pipeline",
    "Postgres",
    "RedisStreams",
    "Results",
    "Rule",
    "Source",
    "Sql",
]
