"""Finds what would make a pipeline fail, before it runs: nothing is written and no row is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, PenstockError, name_of
from penstock.spark.lake.parquet import unfit
from penstock.spark.pipeline.origin import visible_schema
from penstock.spark.pipeline.plan import Planner
from penstock.spark.pipeline.shared_files import files_of
from penstock.spark.pipeline.sinks.file_sink import unwritable
from penstock.spark.pipeline.sinks.writers import writer_of
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.pipeline.steps import kind_of
from penstock.spark.runtime.errors import one_line, without_query_log
from penstock.spark.runtime.master import is_connect
from penstock.spark.runtime.prerequisites import has_read_limits
from penstock.spark.source import payload_columns
from penstock.spark.source.catalogue import look, require
from penstock.spark.source.columns import ENTRY
from penstock.spark.source.spark41_reader import check_unlimited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What Spark keeps state for, as a plan names it; and a join, if both of its sides are streams.
_KEEPS_STATE = re.compile(
    r"Aggregate|Deduplicate|Distinct|(?:Flat)?Map(?:Co)?Groups|CoGroup|TransformWithState|GlobalLimit|Window|Except|Intersect"
)
_JOIN, _SOURCE = "Join", ""
_CLOCK = re.compile(r"Current(?:Date|Time|Timestamp)|Now|LocalTimestamp|CurBatchTimestamp")


class PipelineInvalid(ConfigurationError):
    """A pipeline cannot run; `problems` are its faults, a line each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def validate(pipeline: Pipeline, spark: SparkSession, starting: Mapping[str, str] | None = None) -> DataFrame:
    """Return the rows of a pipeline that can run, up to its trunk; `starting` is for the planner.

    Raises:
        PipelineInvalid: with every fault that was found. A fault of the source or of a step hides those behind it.

    """
    return Validation(pipeline, spark, starting).run()


class Validation:
    """One look at a pipeline."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, starting: Mapping[str, str] | None = None) -> None:
        self._pipeline, self._spark, self._starting = pipeline, spark, starting
        self._problems: list[str] = []

    def run(self) -> DataFrame:
        """Return the rows of the trunk, or raise PipelineInvalid."""
        pipeline = self._pipeline
        self._problems += [f"checkpoint: {found}" for found in unwritable(pipeline.checkpoint, files_of(self._spark))]
        with without_query_log():
            frames = self._plan() if self._is_source_well() else None
            if frames is not None:
                self._problems += self._of_sinks(frames)
        if self._problems or frames is None:
            raise PipelineInvalid(tuple(dict.fromkeys(map(pipeline.masked, self._problems))))
        return frames[pipeline.trunk]

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

    def _plan(self) -> dict[int, DataFrame] | None:
        """Return the rows of the source and of each step; None if one of them cannot work."""
        from pyspark.errors import PySparkException

        planner = Planner(self._spark, self._pipeline, self._starting)
        place = "source"
        try:
            frames = {0: planner.first()}
            for number, step in enumerate(self._pipeline.steps, 1):
                place = f"step {number} ({kind_of(step)})"
                frames[number] = planner.step(number, frames)
                if number > self._pipeline.trunk:
                    self._check_stateless(frames, number)
            place = "steps"
            if not is_connect(self._spark):  # there the start of the query says it
                self._check_streaming(frames[self._pipeline.trunk])
        except (PenstockError, PySparkException) as error:
            self._problems.append(f"{place}: {one_line(error, self._pipeline.masked)}")
        except (Exception, SystemExit) as error:  # a function of the user's
            self._problems.append(f"{place}: {name_of(error)}: {one_line(error, self._pipeline.masked)}")
        else:
            return frames
        finally:
            planner.forget()
        return None

    def _check_stateless(self, frames: Mapping[int, DataFrame], number: int) -> None:
        """Refuse what would be counted batch by batch on a branch, where it looks as if it were the whole stream."""
        if is_connect(self._spark):
            raise ConfigurationError("steps behind a branch need a driver that sees its plan, not Spark Connect")
        here, trunk = (_stateful(_analyzed(frames[each])) for each in (number, self._pipeline.trunk))
        # A step may read the trunk more than once: then it has its operators, and its sources, as often.
        times = here.pop(_SOURCE) // trunk.pop(_SOURCE)
        added = [name for name, count in here.items() if count > times * trunk[name]]
        if added:
            raise ConfigurationError(
                f"{min(added)} over a stream does not work behind a branch, where each batch is computed by itself: "
                "put this step before all branches, or into a pipeline of its own"
            )

    def _check_streaming(self, rows: DataFrame) -> None:
        """Have Spark say now, and not when the query starts, what it cannot do with rows that never end."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        jvm = self._spark._jvm  # noqa: SLF001 - PySpark shows this check nowhere else
        assert jvm is not None
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        mode = modes.Append() if self._pipeline.output_mode == "append" else modes.Update()
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        try:
            checker.checkForStreaming(_analyzed(rows), mode)
        except Py4JJavaError as error:
            raise ConfigurationError(one_line(error.java_exception.getMessage())) from None

    def _of_sinks(self, frames: Mapping[int, DataFrame]) -> Iterator[str]:
        steps = self._pipeline.outputs()
        faults = {step: list(unfit(visible_schema(frames[step].schema))) for step in dict.fromkeys(steps.values())}
        for step, found in faults.items():
            place = "the rows for the sinks" if step == len(self._pipeline.steps) else f"the rows of step {step}"
            yield from (f"{place}: {problem}" for problem in found)
        for number, sink in enumerate(self._pipeline.sinks, 1):
            place, rows = f"sink {number} ({sink.name})", frames[steps[sink.name]]
            if faults[steps[sink.name]]:
                continue  # what a sink would say of such rows is the same again, or misleading
            if sink.where is not None and (problem := self._of_condition(rows, sink.where)) is not None:
                yield f"{place}: where: {problem}"
            try:
                for problem in writer_of(sink, self._pipeline, self._spark).problems(rows.schema):
                    yield f"{place}: {problem}"
            except PenstockError as error:
                yield f"{place}: {error}"

    def _of_condition(self, rows: DataFrame, condition: str) -> str | None:
        from pyspark.errors import PySparkException

        try:
            found = rows.where(condition)
            _ = found.schema  # Spark Connect looks at the condition only now
        except PySparkException as error:
            return one_line(error, self._pipeline.masked)
        if not is_connect(self._spark) and _analyzed(rows).deterministic() and not _analyzed(found).deterministic():
            return f"{condition!r} takes other rows each time it is asked: leave out rand(), uuid() and such"
        if not is_connect(self._spark) and _reads_clock(_analyzed(found)):
            return (
                f"{condition!r} takes other rows when a batch is repeated later: leave out now() and such, or compare "
                "with a column that a step makes of it"
            )
        return None


def _stateful(plan: Any) -> Counter[str]:
    """Return how often a plan has each operator that keeps state of a stream, and how many sources, as `_SOURCE`."""
    found: Counter[str] = Counter()
    for node in _streaming(plan):
        name, inputs = str(node.nodeName()), [child for child in _listed(node.children()) if child.isStreaming()]
        if _KEEPS_STATE.match(name) or (name == _JOIN and inputs[1:]):
            found[name] += 1
        elif not inputs:
            found[_SOURCE] += 1
    return found


def _streaming(plan: Any) -> Iterator[Any]:
    if plan.isStreaming():
        yield plan
        for child in _listed(plan.children()):  # no subquery reads a stream: Spark refuses it
            yield from _streaming(child)


def _reads_clock(plan: Any) -> bool:
    """Return whether the condition of a plan, which is the last thing in it, depends on when it is asked."""
    while plan.nodeName() != "Filter":
        plan = plan.children().apply(0)
    waiting = [plan.condition()]
    while waiting:
        expression = waiting.pop()
        if _CLOCK.fullmatch(expression.nodeName()):
            return True
        waiting += _listed(expression.children())
    return False


def _listed(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]


def _analyzed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows a plan only by printing it
