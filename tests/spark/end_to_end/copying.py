"""Two queries that copy one stream, to files and to another stream; run by a driver that is killed, and once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.end_to_end.gates import waiting
from tests.spark.end_to_end.queries import read_stream, to_files, to_stream
from tests.spark.limits import HAS_LIMITS, limit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

MIDDLE, LAST = (1, 2) if HAS_LIMITS else (0, 0)  # of the batches that 100 rows make


def start_both(
    spark: SparkSession, place: str, url: str, unix_socket: str, *, wait_in_batch: int = -1, is_endless: bool = False
) -> list[StreamingQuery]:
    """Starts both queries, in micro-batches of 40 rows where Spark has limits."""
    rows = read_stream(spark, url, "orders", maxRowsPerTrigger=limit(40))
    rows = rows.mapInArrow(waiting(unix_socket, wait_in_batch), "data string")
    writers = [
        to_files(rows, Path(place) / "files", f"{place}/to-files"),
        to_stream(rows, url, "copy", f"{place}/to-stream").option("batchSize", "5"),
    ]
    pace = {"processingTime": "0 seconds"} if is_endless else {"availableNow": True}
    return [writer.trigger(**pace).start() for writer in writers]
