"""Finds what would make a pipeline fail, before it runs: nothing is written and no row is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError, PenstockError, name_of
from penstock.spark.master import is_connect
from penstock.spark.pipeline.declaration import Pipeline
from penstock.spark.pipeline.origin import visible_schema
from penstock.spark.pipeline.plan import Planner
from penstock.spark.pipeline.shared_files import files_of
from penstock.spark.pipeline.steps import STEPS, Step
from penstock.spark.pipeline.writing.parquet import unfit, unwritable
from penstock.spark.pipeline.writing.writers import writer_of
from penstock.spark.prerequisites import has_read_limits
from penstock.spark.query_log import without_query_log
from penstock.spark.reading import payload_columns
from penstock.spark.reading.catalogue import look, require
from penstock.spark.reading.columns import ENTRY
from penstock.spark.reading.unlimited_reader import check_unlimited
from penstock.spark.spark_errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class PipelineInvalid(ConfigurationError):
    """A pipeline cannot run; `problems` are its faults, a line each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def validate(pipeline: Pipeline, spark: SparkSession) -> DataFrame:
    """Return the plan of a pipeline that can run.

    Raises:
        PipelineInvalid: with every fault that was found. A fault of the source or of a step hides those behind it.

    """
    return Validation(pipeline, spark).run()


class Validation:
    """One look at a pipeline."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._pipeline, self._spark = pipeline, spark
        self._problems: list[str] = []

    def run(self) -> DataFrame:
        """Return the plan, or raise PipelineInvalid."""
        checkpoint = self._pipeline.checkpoint
        self._problems += [f"checkpoint: {problem}" for problem in unwritable(checkpoint, files_of(self._spark))]
        with without_query_log():
            plan = self._plan() if self._is_source_well() else None
        if plan is not None:
            self._problems += self._of_sinks(visible_schema(plan.schema))
        if self._problems or plan is None:
            raise PipelineInvalid(tuple(dict.fromkeys(self._problems)))
        return plan

    def _is_source_well(self) -> bool:
        options = self._pipeline.source.parsed()
        try:
            if not has_read_limits():
                check_unlimited(options)
            client = options.link.client()
            states = look(client, options.stream_names(client))
            if not options.wait_for_streams and not options.selection.is_pattern:
                require(states, client)
            payload_columns.ddl(options, ENTRY)
        except PenstockError as error:
            self._problems.append(f"source: {error}")
            return False
        return True

    def _plan(self) -> DataFrame | None:
        from pyspark.errors import PySparkException

        planner = Planner(self._spark, self._pipeline)
        place = "source"
        try:
            rows = planner.first()
            for number, step in enumerate(self._pipeline.steps, 1):
                place = f"step {number} ({_kind(step)})"
                rows = planner.step(number, step, rows)
            place = "steps"
            if not is_connect(self._spark):  # there the start of the query says it
                self._check_streaming(rows)
        except (PenstockError, PySparkException) as error:
            self._problems.append(f"{place}: {one_line(error)}")
        except (Exception, SystemExit) as error:  # a function of the user's
            self._problems.append(f"{place}: {name_of(error)}: {one_line(error)}")
        else:
            return rows
        finally:
            planner.forget()
        return None

    def _check_streaming(self, rows: DataFrame) -> None:
        """Have Spark say now, and not when the query starts, what it cannot do with rows that never end."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        jvm = self._spark._jvm  # noqa: SLF001 - PySpark shows this check nowhere else
        assert jvm is not None
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        mode = modes.Append() if self._pipeline.output_mode == "append" else modes.Update()
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        try:
            checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)  # noqa: SLF001 - likewise
        except Py4JJavaError as error:
            raise ConfigurationError(one_line(error.java_exception.getMessage())) from None

    def _of_sinks(self, schema: StructType) -> Iterator[str]:
        faults = list(unfit(schema))
        yield from (f"the rows for the sinks: {problem}" for problem in faults)
        if faults:
            return  # what a sink would say of such rows is the same again, or misleading
        for number, sink in enumerate(self._pipeline.sinks, 1):
            place = f"sink {number} ({sink.name})"
            try:
                for problem in writer_of(sink, self._pipeline, self._spark).problems(schema):
                    yield f"{place}: {problem}"
            except PenstockError as error:
                yield f"{place}: {error}"


def _kind(step: Step) -> str:
    return next(kind for kind, cls in STEPS.items() if isinstance(step, cls))
