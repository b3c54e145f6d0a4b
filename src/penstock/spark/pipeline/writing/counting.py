"""Counting rows while they are written, without a second look at them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.pipeline.shared_files import files_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, DataFrameWriter

_TASK = "_penstock_task"
_OF_TASK = re.compile(r"part-(\d+)")


class FilesMissing(PenstockError):
    """Tasks have written files that the driver cannot find."""


def written(
    rows: DataFrame,
    path: str,
    *,
    partition_by: tuple[str, ...] = (),
    compression: str = "zstd",
    zone: str | None = None,
) -> int:
    """Write Parquet files into a new folder and return the number of rows; raise FilesMissing if some are elsewhere.

    `zone` is that of the times in the names of folders, by default the one of the session.
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
    told = seen.get
    if told["rows"]:
        check_files(told["tasks"], [file.path for file in files_of(rows.sparkSession).walk(path)], path)
    return int(told["rows"])


def check_files(tasks: Iterable[int], found: Iterable[str], path: str) -> None:
    """Raise FilesMissing unless each task that had rows has a file: on a cluster, a disk may be another one there."""
    named = (_OF_TASK.match(file.rpartition("/")[2]) for file in found)
    missing = set(tasks) - {int(match[1]) for match in named if match}
    if missing:
        raise FilesMissing(
            f"{len(missing)} of {len(set(tasks))} tasks have written rows to {path} that are not there for the driver: "
            "name a place that the driver and all executors share, such as hdfs:// or s3a://"
        )
