"""The first rows that the sinks of a pipeline would get: nothing is written, and no handler is called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.spark.pipeline.plan import FORMAT, INVALID, Planner, broken_counts, labels_of, marked
from penstock.spark.pipeline.rejected_rows import visible
from penstock.spark.pipeline.spec import CORRUPT, WHY_CORRUPT, Pipeline
from penstock.spark.pipeline.status import Places
from penstock.spark.pipeline.steps import Handler
from penstock.spark.pipeline.validation import PipelineInvalid
from penstock.spark.runtime.errors import one_line, without_query_log
from penstock.spark.runtime.master import require_running
from penstock.spark.source.options import EARLIEST, GROUP, GROUP_NAMES, LATEST, MAX_ROWS, MIN_ROWS, Bound, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STREAMING_OPTIONS = {
    name.lower() for name in (*MAX_ROWS, *MIN_ROWS, "maxBytesPerTrigger", *GROUP_NAMES, "minPartitions")
}


@dataclass(frozen=True)
class Preview:
    """What a pipeline would do with some entries: how many break each rule, and the rows for each sink."""

    entries: int = 0
    broken: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    handlers: tuple[str, ...] = ()  # these were not called


def preview(pipeline: Pipeline, spark: SparkSession, count: int = 20) -> Preview:
    """Run up to `count` entries of each stream through the steps, and return up to `count` rows for each sink.

    These are the first entries that a new checkpoint, or the last reset, starts with, or the newest ones if it starts
    at the end.

    Raises: PipelineInvalid if a part of the pipeline cannot work.
    """
    require_running(spark)
    ranges = dict(_ranges(pipeline, count))
    handlers = tuple(step.handler for step in pipeline.steps if isinstance(step, Handler))
    if not ranges:
        return Preview(handlers=handlers)
    planner = _PreviewPlanner(spark, pipeline, ranges)
    with without_query_log():
        frames = _planned(planner, pipeline)
    try:
        found = planner.entries.agg(*broken_counts(planner.entries, pipeline.all_rules())).collect()[0].asDict()
        broken = {label: found[name] for name, label in labels_of(pipeline.all_rules()).items() if found[name]}
        sinks = {sink.name: _rows(frames[step], sink.where, count) for sink, step in _routes(pipeline)}
        return Preview(planner.entries.count(), broken, sinks, handlers)
    finally:
        planner.entries.unpersist()


def _routes(pipeline: Pipeline) -> Iterator[tuple[Any, int]]:
    steps = pipeline.outputs()
    return ((sink, steps[sink.name]) for sink in pipeline.sinks)


def _rows(rows: DataFrame, where: str | None, count: int) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    kept = visible(rows if where is None else rows.where(where)).limit(count)
    as_json = f.to_json(f.struct("*"), {"ignoreNullFields": "false"})
    return [json.loads(row[0]) for row in kept.select(as_json).collect()]


def _ranges(pipeline: Pipeline, count: int) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the streams that have entries, with the first and the last id to show."""
    options = SourceOptions.parse(pipeline.source.spark_options(Places(pipeline.checkpoint).starting()))
    client, starting = options.link.client(), options.starting or Bound()
    for name in options.stream_names(client):
        key = client.keys(name).stream
        begin = starting.of(name) if starting.ms is None else f"{starting.ms}-0"
        if begin == LATEST:
            found = client.call(key, "XREVRANGE", key, "+", "-", "COUNT", count)[::-1]
        else:
            first = "-" if begin in (EARLIEST, GROUP) else begin
            found = client.call(key, "XRANGE", key, first, "+", "COUNT", count)
        if found:
            yield name, (found[0][0].decode(), found[-1][0].decode())


def _planned(planner: _PreviewPlanner, pipeline: Pipeline) -> dict[int, DataFrame]:
    from pyspark.errors import PySparkException

    try:
        return planner.frames()
    except (PenstockError, PySparkException) as error:
        raise PipelineInvalid((f"{planner.part}: {one_line(error, pipeline.masked)}",)) from None
    finally:
        planner.forget()


class _PreviewPlanner(Planner):
    """Plans a pipeline over existing entries, without anything that writes."""

    entries: DataFrame

    def __init__(self, spark: SparkSession, pipeline: Pipeline, ranges: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(spark, pipeline)
        self._ranges = ranges

    def _source(self) -> DataFrame:
        begin = {name: first for name, (first, _) in self._ranges.items()}
        end = {name: last for name, (_, last) in self._ranges.items()}
        options = self._pipeline.source.spark_options({"startingOffsets": json.dumps(begin)})
        options = {name: value for name, value in options.items() if name.lower() not in _STREAMING_OPTIONS}
        options |= {"streams": ",".join(self._ranges), "endingOffsets": json.dumps(end)}
        reader = self._spark.read.format(FORMAT).options(**options)
        self.entries = reader.schema(self._columns(reader.load().schema)).load().cache()
        return self.entries

    def _taken_in(self, rows: DataFrame) -> DataFrame:
        found = marked(rows, self._pipeline.all_rules())
        for mark in (WHY_CORRUPT, INVALID):
            if mark in found.columns:
                found = found.where(f"{mark} IS NULL")
        return found.drop(CORRUPT, WHY_CORRUPT, INVALID)

    def _dedup(self, rows: DataFrame) -> DataFrame:
        columns = list(self._pipeline.dedup)
        return rows.dropDuplicates(columns) if columns else rows

    def _handled(self, number: int, step: Handler, rows: DataFrame) -> DataFrame:  # noqa: ARG002 - overrides
        schema, _ = self._handled_schema(step, rows)
        added = [f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`" for field in schema.fields]
        return rows.selectExpr("*", *added[len(rows.columns) :])
