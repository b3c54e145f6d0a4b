"""Parquet files as Spark writes them: what can be in them, how many rows were written, and whether all arrived."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.spark.lake.files import StoredFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.types import DataType, StructType

_TASK = "_penstock_task"
_OF_TASK = re.compile(r"part-(\d+)")


class FilesMissing(PenstockError):
    """Tasks have written files that the driver cannot find."""


def written(
    rows: DataFrame,
    path: str,
    walk: Callable[[str], Sequence[StoredFile]],
    *,
    partition_by: tuple[str, ...] = (),
    compression: str = "zstd",
    zone: str | None = None,
) -> int:
    """Write Parquet files into a new folder and return the number of rows; raise FilesMissing if some are elsewhere.

    `walk` returns the files below a folder. `zone` is that of the times in the names of folders, by default the one of
    the session.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    # Other readers of Parquet have no use for the times that Spark writes by default (INT96).
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    seen = Observation()
    counts = f.count(f.lit(1)).alias("rows"), f.collect_set(_TASK).alias("tasks")
    watched = rows.withColumn(_TASK, f.spark_partition_id()).observe(seen, *counts).drop(_TASK)
    writer: DataFrameWriter = watched.write.mode("overwrite").option("compression", compression)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    if zone is not None:
        writer = writer.option("timeZone", zone)
    writer.parquet(path)
    totals = seen.get
    if totals["rows"]:
        check_files(totals["tasks"], [file.path for file in walk(path)], path)
    return int(totals["rows"])


def check_files(tasks: Iterable[int], found: Iterable[str], path: str) -> None:
    """Raise FilesMissing unless each task that had rows has a file: on a cluster, a disk may be another one there."""
    named = (_OF_TASK.match(file.rpartition("/")[2]) for file in found)
    missing = set(tasks) - {int(match[1]) for match in named if match}
    if missing:
        raise FilesMissing(
            f"the driver cannot see the files that {len(missing)} of {len(set(tasks))} tasks wrote to {path}: "
            "use a location that the driver and all executors share, such as hdfs:// or s3a://"
        )


def unfit(schema: StructType) -> Iterator[str]:
    """Yield what keeps rows out of Parquet files, and so out of all sinks."""
    seen: set[str] = set()
    for field in schema.fields:
        if field.name.lower() in seen:
            yield f"two columns are named {field.name!r} (case is ignored): rename one"
        seen.add(field.name.lower())
        if what := _why_unfit(field.dataType):
            yield f"column {field.name!r} is {field.dataType.simpleString()}, {what}"


def _why_unfit(kind: DataType) -> str | None:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
        if not inner:
            return "which is empty, and Parquet cannot store it: drop it"
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, NullType) or "interval" in kind.simpleString():
        return "which Parquet cannot store: cast it"
    return next(filter(None, map(_why_unfit, inner)), None)


def nullable_arrow(schema: StructType) -> Any:
    """Return the schema with columns that may all be null: later rows may have nulls where there are none today."""
    from pyspark.sql.types import StructField, StructType

    from penstock.spark.runtime.versions import arrow_schema

    return arrow_schema(StructType([StructField(f.name, f.dataType) for f in schema.fields]))
