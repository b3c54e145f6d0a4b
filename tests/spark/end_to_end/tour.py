"""All four ways to use the format, one after the other; also run by drivers in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.end_to_end.queries import FORMAT, column, read, read_stream, run_now, to_stream
from tests.spark.limits import limit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tour(
    spark: SparkSession, url: str, streams: str, place: str, prefix: str = "copy", **options: Any
) -> dict[str, list[str]]:
    """Returns what was read, what was copied by a streaming query, and what was copied by a batch query."""
    rows = read(spark, url, streams, **options)
    streamed, written = f"{prefix}-streamed", f"{prefix}-written"
    growing = read_stream(spark, url, streams, maxRowsPerTrigger=limit(20), **options)
    query = run_now(to_stream(growing, url, streamed, f"{place}/checkpoint").options(**options))
    error = query.exception()
    if error is not None:
        raise error
    rows.write.format(FORMAT).options(url=url, stream=written, **options).mode("append").save()
    return {
        "read": column(rows),
        "streamed": column(read(spark, url, streamed, **options)),
        "written": column(read(spark, url, written, **options)),
    }
