"""Finds problems of a pipeline before it runs: nothing is written and no row is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, PenstockError, name_of
from penstock.spark.format.base_stream_reader import check_unlimited
from penstock.spark.format.columns import ENTRY, payload_ddl
from penstock.spark.lake.parquet import unfit
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import files_of
from penstock.spark.pipeline.plan import Planner
from penstock.spark.pipeline.rejected_rows import visible_schema
from penstock.spark.pipeline.sinks.writer import unwritable
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.runtime.errors import analyzed, listed, one_line, unsteady, without_query_log
from penstock.spark.runtime.master import is_connect, require_running
from penstock.spark.runtime.versions import has_read_limits
from penstock.spark.source.catalogue import look, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Operators that keep state, by their names in a plan; a join does, if both sides are streams.
_KEEPS_STATE = re.compile(
    r"Aggregate|Deduplicate|Distinct|(?:Flat)?Map(?:Co)?Groups|CoGroup|TransformWithState|GlobalLimit|Window|Except|Intersect"
)
_JOIN, _SOURCE = "Join", ""


class PipelineInvalid(ConfigurationError):
    """A pipeline cannot run; `problems` has one line per problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def validate(pipeline: Pipeline, spark: SparkSession, starting: Mapping[str, str] | None = None) -> DataFrame:
    """Return the rows of the trunk of a pipeline that can run; `starting` is for the planner.

    Raises:
        PipelineInvalid: with every problem found. A problem of the source or of a step hides those after it.

    """
    return Validation(pipeline, spark, starting).run()


class Validation:
    """One validation of a pipeline."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, starting: Mapping[str, str] | None = None) -> None:
        self._pipeline, self._spark, self._starting = pipeline, spark, starting
        self._problems: list[str] = []

    def run(self) -> DataFrame:
        """Return the rows of the trunk, or raise PipelineInvalid."""
        require_running(self._spark)
        pipeline = self._pipeline
        self._problems += [f"checkpoint: {found}" for found in unwritable(pipeline.checkpoint, files_of(self._spark))]
        with without_query_log():
            frames = self._plan() if self._check_source() else None
            if frames is not None:
                self._problems += self._of_sinks(frames)
        if self._problems or frames is None:
            raise PipelineInvalid(tuple(dict.fromkeys(map(pipeline.masked, self._problems))))
        return frames[pipeline.trunk]

    def _check_source(self) -> bool:
        options = self._pipeline.source.parsed()
        try:
            if not has_read_limits():
                check_unlimited(options)
            client = options.link.client()
            states = look(client, options.stream_names(client))
            if not options.wait_for_streams and not options.selection.is_pattern:
                require(states, client)
            payload_ddl(options, ENTRY)
        except PenstockError as error:
            self._problems.append(f"source: {error}")
            return False
        return True

    def _plan(self) -> dict[int, DataFrame] | None:
        """Return the rows of the source and of each step; None if one of them has a problem."""
        from pyspark.errors import PySparkException

        planner = Planner(self._spark, self._pipeline, self._starting)
        try:
            frames = planner.frames(self._check_stateless)
            planner.part = "steps"
            if not is_connect(self._spark):  # Spark Connect reports it when the query starts
                self._check_streaming(frames[self._pipeline.trunk])
        except (PenstockError, PySparkException) as error:
            self._problems.append(f"{planner.part}: {one_line(error, self._pipeline.masked)}")
        except (Exception, SystemExit) as error:  # raised by a user's function
            self._problems.append(f"{planner.part}: {name_of(error)}: {one_line(error, self._pipeline.masked)}")
        else:
            return frames
        finally:
            planner.forget()
        return None

    def _check_stateless(self, frames: Mapping[int, DataFrame], number: int) -> None:
        """Reject operators on a branch that keep state: there, they would see one batch instead of the whole stream."""
        if number <= self._pipeline.trunk:
            return
        if is_connect(self._spark):
            raise ConfigurationError("steps after a branch need a classic Spark session, not Spark Connect")
        here, trunk = (_stateful(analyzed(frames[each])) for each in (number, self._pipeline.trunk))
        # A step that reads the trunk several times has its operators and sources as many times.
        times = here.pop(_SOURCE) // trunk.pop(_SOURCE)
        added = [name for name, count in here.items() if count > times * trunk[name]]
        if added:
            raise ConfigurationError(
                f"{min(added)} over a stream does not work after a branch, where each batch is computed "
                "separately: put this step before all branches, or into its own pipeline"
            )

    def _check_streaming(self, rows: DataFrame) -> None:
        """Let Spark reject now, rather than when the query starts, what it cannot do with a stream."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        jvm = self._spark._jvm  # noqa: SLF001 - PySpark has no other access
        assert jvm is not None
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        mode = modes.Append() if self._pipeline.output_mode == "append" else modes.Update()
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        try:
            checker.checkForStreaming(analyzed(rows), mode)
        except Py4JJavaError as error:
            raise ConfigurationError(one_line(error.java_exception.getMessage())) from None

    def _of_sinks(self, frames: Mapping[int, DataFrame]) -> Iterator[str]:
        steps = self._pipeline.outputs()
        faults = {step: list(unfit(visible_schema(frames[step].schema))) for step in dict.fromkeys(steps.values())}
        for step, found in faults.items():
            label = "the rows for the sinks" if step == len(self._pipeline.steps) else f"the rows of step {step}"
            yield from (f"{label}: {problem}" for problem in found)
        for number, sink in enumerate(self._pipeline.sinks, 1):
            label, rows = f"sink {number} ({sink.name})", frames[steps[sink.name]]
            if faults[steps[sink.name]]:
                continue  # the sink would report the same again, or something misleading
            if sink.where is not None and (problem := self._of_condition(rows, sink.where)) is not None:
                yield f"{label}: where: {problem}"
            try:
                for problem in writer_of(sink, self._pipeline, self._spark).problems(rows.schema):
                    yield f"{label}: {problem}"
            except PenstockError as error:
                yield f"{label}: {error}"

    def _of_condition(self, rows: DataFrame, condition: str) -> str | None:
        from pyspark.errors import PySparkException

        try:
            found = rows.where(condition)
            _ = found.schema  # Spark Connect looks at the condition only now
        except PySparkException as error:
            return one_line(error, self._pipeline.masked)
        what = unsteady(rows, found)
        return None if what is None else f"{condition!r} selects different rows each time: remove {what}"


def _stateful(plan: Any) -> Counter[str]:
    """Return how often a plan has each operator that keeps state; `_SOURCE` counts its sources."""
    found: Counter[str] = Counter()
    for node in _streaming(plan):
        name, inputs = str(node.nodeName()), [child for child in listed(node.children()) if child.isStreaming()]
        if _KEEPS_STATE.match(name) or (name == _JOIN and inputs[1:]):
            found[name] += 1
        elif not inputs:
            found[_SOURCE] += 1
    return found


def _streaming(plan: Any) -> Iterator[Any]:
    if plan.isStreaming():
        yield plan
        for child in listed(plan.children()):  # Spark rejects subqueries that read a stream
            yield from _streaming(child)
