"""The plan of a pipeline: from the rows of its streams to those that go to the sinks, as one streaming DataFrame."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.spark.master import is_connect
from penstock.spark.pipeline.checks import duration_s, imported
from penstock.spark.pipeline.dead_letters import DeadLetterOffice
from penstock.spark.pipeline.declaration import Pipeline
from penstock.spark.pipeline.handling import NEEDED, HandlerTask
from penstock.spark.pipeline.intake import INVALID, Intake
from penstock.spark.pipeline.source import CORRUPT, WHY_CORRUPT
from penstock.spark.pipeline.steps import INPUT, Function, Handler, Sql, Step
from penstock.spark.reading.columns import ENTRY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DEDUP = "_penstock_dedup"
_FORMAT = "redis_streams"
_PARTITIONS = "minPartitions"


def office_of(pipeline: Pipeline) -> DeadLetterOffice:
    """Return how the dead letters of a pipeline are reached."""
    source = pipeline.source
    link = replace(source.parsed().link, dead_letter_limits=source.dead_letter_limits)
    return DeadLetterOffice(link, pipeline.name, pipeline.checkpoint)


class Planner:
    """Plans a pipeline on a session. Each part raises ConfigurationError, or Spark's AnalysisException."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark, self._pipeline = spark, pipeline
        self._office = office_of(pipeline)

    def plan(self) -> DataFrame:
        """Return the rows for the sinks."""
        rows = self.first()
        for number, step in enumerate(self._pipeline.steps, 1):
            rows = self.step(number, step, rows)
        self.forget()
        return rows

    def first(self) -> DataFrame:
        """Return what the first step is given: decoded, valid rows, without repetitions if that is wanted."""
        rows = self._taken_in(self._source())
        self._check_watermark(rows.schema)
        return self._dedup(self._watermark(rows))

    # --- before the steps ---

    def _source(self) -> DataFrame:
        from pyspark.sql.types import StructType as Struct

        source = self._pipeline.source
        options = source.spark_options()
        if not is_connect(self._spark) and _PARTITIONS.lower() not in {name.lower() for name in options}:
            # The offsets in the checkpoint say where a batch is cut: it is repeated as it was, with however many cores.
            options[_PARTITIONS] = str(self._spark.sparkContext.defaultParallelism)
        reader = self._spark.readStream.format(_FORMAT).options(**options)
        wanted = {*source.columns, *NEEDED}
        # The schema that is given is the projection: columns that nobody wants are not even built.
        fields = [field for field in reader.load().schema.fields if field.name not in ENTRY or field.name in wanted]
        return reader.schema(Struct(fields)).load()

    def _taken_in(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        conditions = [*(f"{name} IS NOT NULL" for name in self._pipeline.source.required_columns())]
        conditions += self._pipeline.source.valid
        is_decoded = WHY_CORRUPT in rows.columns
        if not is_decoded and not conditions:
            return rows
        going_on = [name for name in rows.columns if name not in (CORRUPT, WHY_CORRUPT)]
        schema = rows.select(*going_on).schema
        if conditions:
            # Null is not true: a row of which a condition cannot be told is not valid.
            mark: Any = f.lit(None).cast("string")
            for condition in reversed(conditions):
                mark = f.when(~f.coalesce(f.expr(condition), f.lit(False)), f.lit(condition)).otherwise(mark)
            rows = rows.withColumn(INVALID, mark)
        kept = [name for name in rows.columns if name != CORRUPT]
        return rows.select(*kept).mapInArrow(Intake(self._office, tuple(going_on)), schema)

    def _check_watermark(self, schema: StructType) -> None:
        pipeline = self._pipeline
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        found = types.get(pipeline.watermark_column)
        if pipeline.watermark is None or (found is not None and found.startswith("timestamp")):
            return
        what = f"is {found} and no timestamp" if found else f"does not exist; there are {', '.join(types)}"
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
            raise ConfigurationError(f"dedup: there is no column {unknown[0]!r}; there are {', '.join(rows.columns)}")
        maps = [name for name in columns if "map<" in rows.schema[name].dataType.simpleString()]
        if maps:
            raise ConfigurationError(f"dedup: column {maps[0]!r} is a map, which Spark cannot compare: name another")
        # Null is no value that could repeat: such a row is known by its place in the stream.
        place = f.concat_ws("/", f.col("stream"), f.col("id"))
        is_null = f.greatest(*(f.col(name).isNull() for name in columns), f.lit(False))
        marked = rows.withColumn(_DEDUP, f.when(is_null, place))
        return marked.dropDuplicatesWithinWatermark([*columns, _DEDUP]).drop(_DEDUP)

    # --- the steps ---

    def step(self, number: int, step: Step, rows: DataFrame) -> DataFrame:
        """Return the rows after a step."""
        if isinstance(step, Sql):
            rows.createOrReplaceTempView(INPUT)
            made = self._spark.sql(step.sql)
        elif isinstance(step, Function):
            made = self._called(step, rows)
        else:
            made = self._handled(step, rows)
        if not made.isStreaming:
            raise ConfigurationError(f"step {number} does not read its input: its rows would be the same in each batch")
        if step.name is not None:
            made.createOrReplaceTempView(step.name)
        return made

    def _called(self, step: Function, rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame as Frame

        made = imported("python", step.python)(rows)
        if not isinstance(made, Frame):
            raise ConfigurationError(f"python = {step.python!r} must return a DataFrame, not {type(made).__name__}")
        return made

    def _handled(self, step: Handler, rows: DataFrame) -> DataFrame:
        from pyspark.sql.types import StructType as Struct

        from penstock.spark.arrow_types import arrow_schema

        imported("handler", step.handler)
        missing = [name for name in NEEDED if name not in rows.columns]
        if missing:
            raise ConfigurationError(
                f"handler = {step.handler!r} needs the column {missing[0]!r} of the entry: let the steps before it "
                f"keep {', '.join(NEEDED)}"
            )
        schema, output = rows.schema, None
        if step.output is not None:
            added = Struct.fromDDL(step.output)
            assert isinstance(added, Struct)
            output = arrow_schema(added)
            for name in added.names:
                if name in rows.columns:
                    raise ConfigurationError(f"output: there is a column {name!r} already")
            schema = Struct([*schema.fields, *added.fields])
        task = HandlerTask(step, self._office, self._pipeline.source.format, output)
        return rows.mapInArrow(task, schema)

    def forget(self) -> None:
        """Drop the tables that SQL steps were given: the plan has taken them in, or is only made when it is started."""
        if is_connect(self._spark):
            return
        for name in (INPUT, *(step.name for step in self._pipeline.steps if step.name is not None)):
            self._spark.catalog.dropTempView(name)
