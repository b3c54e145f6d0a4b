"""The source, the dead letters and the handlers of pipelines for projects of Spark Declarative Pipelines.

Such a project owns its queries, checkpoints and tables. What is left for us is the rows of a table: a DataFrame, whose
plan decodes payloads, runs handlers and writes dead letters on the executors, as in a pipeline of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.spark.pipeline import Console, Function, Handler, Pipeline, Source, Sql
from penstock.spark.pipeline.plan import Planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_CHECKPOINT = "of spark-pipelines"


def rows(name: str, source: Source, *steps: Handler | Function | Sql) -> DataFrame:
    """Return the rows of streams, for the tables and sinks of a project; to be called outside of its query functions.

    In there Spark allows no question about columns, and the plan of the rows depends on them. `name` is what dead
    letters call the pipeline. Payloads that cannot be decoded, rows that are not valid, and messages that a handler
    gives up go to the dead letters of their stream, once each.

    Raises: ConfigurationError for what cannot work.
    """
    from pyspark.sql import SparkSession

    for step in steps:
        if isinstance(step, Sql) or step.name is not None:
            raise ConfigurationError(
                "SQL steps and named steps are not supported here, because Spark Declarative Pipelines do not "
                "allow temporary views: define such a step as a table of the project, based on the table of "
                "these rows"
            )
    pipeline = Pipeline(name=name, source=source, steps=steps, sinks=(Console(),), checkpoint=_NO_CHECKPOINT)
    return Planner(SparkSession.active(), pipeline).plan()
