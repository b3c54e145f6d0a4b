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
