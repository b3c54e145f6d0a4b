"""The plan of a pipeline: from the rows of its streams to the rows for its sinks.

On an executor, rows that do not decode or that break a rule are removed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigurationError, DecodeError, NotAuthentic, PenstockError
from penstock.policy import Reason, unreadable
from penstock.spark.format.columns import ENTRY
from penstock.spark.pipeline.dead_letters import DeadLetterConfig, Failure
from penstock.spark.pipeline.handling import NEEDED, HandlerTask
from penstock.spark.pipeline.sink_options import Delta, Iceberg, KeyedOptions
from penstock.spark.pipeline.sinks.delta import uses_jars
from penstock.spark.pipeline.sinks.iceberg import is_for_jars
from penstock.spark.pipeline.spec import CORRUPT, DECODE, WHY_CORRUPT, Pipeline
from penstock.spark.pipeline.steps import (
    INPUT,
    Function,
    Handler,
    Rule,
    Sql,
    imported,
    kind_of,
    needed_for,
    number_of,
)
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.master import is_connect
from penstock.spark.runtime.option_values import duration_s
from penstock.spark.runtime.versions import has_read_limits
from penstock.spark.source.options import MAX_ROWS
from penstock.spark.source.rows import NOT_AUTHENTIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

INVALID = "_penstock_invalid"
COUNTS = "penstock_rules"
_IS_BROKEN = "NOT coalesce({}, false)"  # a row for which a rule is null breaks it
_DEDUP = "_penstock_dedup"
FORMAT = "redis_streams"
_PARTITIONS = "minPartitions"
_MOST_MERGED = 500_000


class RowInvalid(PenstockError):
    """A row breaks a rule of its pipeline."""


def labels_of(rules: Sequence[Rule]) -> dict[str, str]:
    """Return the label of each column of `broken_counts`."""
    return {DECODE: DECODE, **{f"rule_{number}": rule.label for number, rule in enumerate(rules)}}


def broken_counts(rows: DataFrame, rules: Sequence[Rule]) -> list[Column]:
    """Return columns that count the rows that do not decode and, among the others, those that break each rule."""
    from pyspark.sql import functions as f

    decoded = f"{WHY_CORRUPT} IS NULL" if WHY_CORRUPT in rows.columns else "true"
    broken = [f"{decoded} AND {_IS_BROKEN.format(f'({rule.check})')}" for rule in rules]
    conditions = zip(labels_of(rules), [f"NOT ({decoded})", *broken], strict=True)
    return [f.expr(f"count_if({condition})").alias(name) for name, condition in conditions]


def marked(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows without the raw record, and with the first rule that each breaks, unless the rule only warns."""
    from pyspark.sql import functions as f

    mark: Column = f.lit(None).cast("string")
    taking = [rule for rule in rules if rule.action != "warn"]
    for rule in reversed(taking):
        mark = f.when(f.expr(_IS_BROKEN.format(f"({rule.check})")), f.lit(rule.label)).otherwise(mark)
    kept = rows.drop(CORRUPT)
    return kept.withColumn(INVALID, mark) if taking else kept


@dataclass(frozen=True)
class Intake(Shipped):
    """Passes good rows on and dead-letters the others; called by Spark with the Arrow batches of a task.

    A row that breaks one of the rules in `fatal` fails the batch.
    """

    dead_letters: DeadLetterConfig
    columns: tuple[str, ...]
    fatal: frozenset[str] = frozenset()

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the good rows, without the marks."""
        freeze_gc()
        writer = self.dead_letters.open()
        for batch in batches:
            is_good = _is_good(batch)
            bad = batch.filter(pc.invert(is_good))
            for row in bad.select(_useful(bad)).to_pylist():
                if row.get(WHY_CORRUPT) is None and row[INVALID] in self.fatal:
                    raise RowInvalid(
                        f"entry {row['id']} of stream {row['stream']!r} violates the rule {row[INVALID]!r}, "
                        "whose action is fail"
                    )
                writer.dead_letter(row["stream"], row["id"], row.get("data"), _failure(row))
            good = batch.filter(is_good) if bad.num_rows else batch
            yield good.select(list(self.columns))


def _is_good(batch: Any) -> Any:
    marks = [pc.is_null(batch.column(name)) for name in (WHY_CORRUPT, INVALID) if name in batch.schema.names]
    is_good = marks[0]
    for mark in marks[1:]:
        is_good = pc.and_(is_good, mark)
    return is_good


def _useful(batch: Any) -> list[str]:
    return [name for name in ("stream", "id", "data", WHY_CORRUPT, INVALID) if name in batch.schema.names]


def _failure(row: dict[str, Any]) -> Failure:
    why = row.get(WHY_CORRUPT)
    if why is not None:
        error = NotAuthentic(why) if why.startswith(f"{NOT_AUTHENTIC}:") else DecodeError(why)
        return Failure(unreadable(error), error)
    return Failure(Reason.INVALID, RowInvalid(f"violates the rule {row[INVALID]}"))


def dead_letter_config(pipeline: Pipeline) -> DeadLetterConfig:
    """Return how tasks reach the dead letters of a pipeline."""
    source = pipeline.source
    link = replace(source.parsed().link, dead_letter_limits=source.dead_letter_limits)
    return DeadLetterConfig(link, pipeline.name, pipeline.checkpoint)


class Planner:
    """Plans a pipeline on a session. Each part raises ConfigurationError, or Spark's AnalysisException.

    Rows up to the trunk, the last step that all sinks share, are one streaming DataFrame. `branch()` plans the steps
    after it, over the rows of one batch. `starting` overrides where a new query begins.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, starting: Mapping[str, str] | None = None) -> None:
        self._spark, self._pipeline, self._starting = spark, pipeline, starting
        self._dead_letters = dead_letter_config(pipeline)
        self._trunk = pipeline.trunk
        self.part = "source"  # what is being planned, for errors

    def plan(self) -> DataFrame:
        """Return the rows of the trunk."""
        frames = {0: self.first()}
        for number in range(1, self._trunk + 1):
            frames[number] = self.step(number, frames)
        self.forget()
        return frames[self._trunk]

    def frames(self, check: Callable[[Mapping[int, DataFrame], int], None] = lambda *_: None) -> dict[int, DataFrame]:
        """Return the rows of the source and of each step by its number, including those after the trunk."""
        frames = {0: self.first()}
        for number, step in enumerate(self._pipeline.steps, 1):
            self.part = f"step {number} ({kind_of(step)})"
            frames[number] = self.step(number, frames)
            check(frames, number)
        return frames

    def branch(self, rows: DataFrame, number: int) -> DataFrame:
        """Return the rows of a step after the trunk; `rows` are one batch of the trunk."""
        frames = {self._trunk: rows}
        self._show(self._trunk, rows)
        for each in sorted(needed_for(self._pipeline.steps, [number])):
            if each > self._trunk:
                frames[each] = self.step(each, frames)
        self.forget()
        return frames[number]

    def first(self) -> DataFrame:
        """Return the input of the first step: decoded, valid rows, deduplicated if the pipeline has `dedup`."""
        rows = self._taken_in(self._source())
        self._check_watermark(rows.schema)
        return self._dedup(self._watermark(rows))

    # --- before the steps ---

    def _source(self) -> DataFrame:
        source = self._pipeline.source
        options = source.spark_options(self._starting)
        if not is_connect(self._spark) and _PARTITIONS.lower() not in {name.lower() for name in options}:
            # Offsets in the checkpoint define the partitions: a batch is repeated as it was on any number of cores.
            options[_PARTITIONS] = str(self._spark.sparkContext.defaultParallelism)
        limits = source.parsed()
        if limits.max_rows is limits.max_bytes is None and has_read_limits() and self._merges_on_driver():
            # The offsets of a batch that does not fit would already be in the checkpoint, so it could never be smaller.
            options[MAX_ROWS[0]] = str(max(_MOST_MERGED, limits.min_rows or 0))
        reader = self._spark.readStream.format(FORMAT).options(**options)
        return reader.schema(self._columns(reader.load().schema)).load()

    def _merges_on_driver(self) -> bool:
        """Return whether batches pass through the memory of the driver, which replaces rows without jars."""
        return any(
            (isinstance(sink, Delta) and not uses_jars(sink, self._spark))
            or (isinstance(sink, Iceberg) and not is_for_jars(sink, self._spark))
            for sink in self._pipeline.sinks
            if isinstance(sink, KeyedOptions) and sink.key
        )

    def _columns(self, schema: StructType) -> StructType:
        """Return the schema to read with. It is a projection: the source does not build the other columns."""
        from pyspark.sql.types import StructType as Struct

        wanted = {*self._pipeline.source.columns, *NEEDED}
        return Struct([field for field in schema.fields if field.name not in ENTRY or field.name in wanted])

    def _taken_in(self, rows: DataFrame) -> DataFrame:
        rules = self._pipeline.all_rules()
        if WHY_CORRUPT not in rows.columns and not rules:
            return rows
        kept = [name for name in rows.columns if name not in (CORRUPT, WHY_CORRUPT)]
        schema = rows.select(*kept).schema
        rows = marked(rows.observe(COUNTS, *broken_counts(rows, rules)), rules)
        fatal = frozenset(rule.label for rule in rules if rule.action == "fail")
        if len(rows.columns) == len(kept):
            return rows  # no rule removes rows
        return rows.mapInArrow(Intake(self._dead_letters, tuple(kept), fatal), schema)

    def _check_watermark(self, schema: StructType) -> None:
        pipeline = self._pipeline
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        found = types.get(pipeline.watermark_column)
        if pipeline.watermark is None or (found is not None and found.startswith("timestamp")):
            return
        what = f"is {found}, not a timestamp" if found else f"is not a column; available: {', '.join(types)}"
        raise ConfigurationError(f"watermark_column {pipeline.watermark_column!r} {what}")

    def _watermark(self, rows: DataFrame) -> DataFrame:
        pipeline = self._pipeline
        if pipeline.watermark is None or pipeline.watermark_column not in rows.columns:
            return rows
        delay_ms = int(duration_s("watermark", pipeline.watermark) * 1000)
        return rows.withWatermark(pipeline.watermark_column, f"{delay_ms} milliseconds")

    def _dedup(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        columns = self._pipeline.dedup
        if not columns:
            return rows
        unknown = [name for name in columns if name not in rows.columns]
        if unknown:
            raise ConfigurationError(f"dedup: unknown column {unknown[0]!r}; available: {', '.join(rows.columns)}")
        maps = [name for name in columns if "map<" in rows.schema[name].dataType.simpleString()]
        if maps:
            raise ConfigurationError(
                f"dedup: column {maps[0]!r} is a map, which Spark cannot compare: choose another column"
            )
        # Null equals nothing, so a row with null is identified by its position in the stream.
        position = f.concat_ws("/", f.col("stream"), f.col("id"))
        is_null = f.greatest(*(f.col(name).isNull() for name in columns), f.lit(False))
        marked = rows.withColumn(_DEDUP, f.when(is_null, position))
        return marked.dropDuplicatesWithinWatermark([*columns, _DEDUP]).drop(_DEDUP)

    # --- the steps ---

    def step(self, number: int, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Return the rows of a step; `frames` has those of the steps before it."""
        steps = self._pipeline.steps
        step = steps[number - 1]
        given = number - 1 if step.from_ is None else number_of(steps, step.from_)
        if isinstance(step, Sql):
            if given in frames:
                frames[given].createOrReplaceTempView(INPUT)
            made = self._spark.sql(step.sql)
        elif isinstance(step, Function):
            made = self._called(step, frames[given])
        else:
            made = self._handled(number, step, frames[given])
        if not made.isStreaming and any(rows.isStreaming for rows in frames.values()):
            raise ConfigurationError(
                f"step {number} does not read its input, so its rows would be the same in every batch"
            )
        self._show(number, made)
        return made

    def _show(self, number: int, rows: DataFrame) -> None:
        if number and (name := self._pipeline.steps[number - 1].name) is not None:
            rows.createOrReplaceTempView(name)

    def _called(self, step: Function, rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame as Frame

        made = imported("python", step.python)(rows)
        if not isinstance(made, Frame):
            raise ConfigurationError(f"python={step.python!r} must return a DataFrame, not {type(made).__name__}")
        return made

    def _handled(self, number: int, step: Handler, rows: DataFrame) -> DataFrame:
        imported("handler", step.handler)
        schema, output = self._handled_schema(step, rows)
        letters = self._dead_letters
        if number > self._trunk:
            letters = replace(letters, scope=f":step {number}")
        return rows.mapInArrow(HandlerTask(step, letters, self._pipeline.source.format, output), schema)

    def _handled_schema(self, step: Handler, rows: DataFrame) -> tuple[StructType, pa.Schema | None]:
        """Return the columns after a handler, and those that it adds."""
        from pyspark.sql.types import StructType as Struct

        from penstock.spark.runtime.versions import arrow_schema

        missing = [name for name in NEEDED if name not in rows.columns]
        if missing:
            raise ConfigurationError(
                f"handler={step.handler!r} needs the column {missing[0]!r} of the entry: the steps before it "
                f"must keep {', '.join(NEEDED)}"
            )
        if step.output is None:
            return rows.schema, None
        added = Struct.fromDDL(step.output)
        assert isinstance(added, Struct)
        for name in added.names:
            if name in rows.columns:
                raise ConfigurationError(f"output: column {name!r} already exists")
        return Struct([*rows.schema.fields, *added.fields]), arrow_schema(added)

    def forget(self) -> None:
        """Drop the views for SQL steps, which the plan has resolved; Spark Connect resolves them only at the start."""
        if is_connect(self._spark):
            return
        for name in (INPUT, *(step.name for step in self._pipeline.steps if step.name is not None)):
            self._spark.catalog.dropTempView(name)
