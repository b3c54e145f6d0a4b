"""The source, the dead letters and the handlers of pipelines, for projects of Spark Declarative Pipelines.

Such a project owns its queries, checkpoints and tables. Penstock provides the rows of a table: a DataFrame whose plan
decodes payloads, runs handlers and writes dead letters on the executors, as in a pipeline.
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
    """Return the rows of streams, for the tables and sinks of a project; call it outside of query functions.

    Inside them, Spark does not let code read the columns of a DataFrame, and the plan of the rows depends on them.
    `name` is the name of the pipeline in dead letters. Payloads that cannot be decoded, invalid rows, and messages for
    which a handler keeps failing become dead letters of their stream, once each.

    Raises: ConfigurationError for invalid arguments.
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
