"""Where a Spark session computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_SCHEME = "sc://"


def is_local(master: str | None) -> bool:
    """Tells whether driver and executors are one process on this machine."""
    return master is not None and (master == "local" or master.startswith("local["))


def is_connect(spark: SparkSession) -> bool:
    """Tells whether the session only talks to a Spark Connect server. No import: that would need grpcio."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def enough_tasks(spark: SparkSession) -> int:
    """Return a number of tasks that keeps all cores busy to the end, although one of them takes longer."""
    if is_connect(spark):  # it does not tell the number of cores
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return 4 * spark.sparkContext.defaultParallelism
