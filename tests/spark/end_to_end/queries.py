"""Streams with known entries, and queries over them in as few words as possible."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from penstock.spark.source.offsets import lag
from penstock.testing import Cluster
from tests.spark.driver import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

FORMAT = "redis_streams"
START_MS = 1_700_000_000_000


def fill(client: Any, stream: str, count: int, *, first: int = 0) -> list[str]:
    """Adds entries, one for each millisecond from START_MS + first on, whose payloads are their numbers."""
    for n in range(first, first + count):
        client.execute_command("XADD", stream, f"{START_MS + n}-0", "data", str(n))
    return numbers(first, first + count)


def numbers(*bounds: int) -> list[str]:
    """Returns the payloads that `fill` gives to the entries of a range."""
    return [str(n) for n in range(*bounds)]


def entry_id(n: int) -> str:
    """Returns the id that `fill` gives to an entry."""
    return f"{START_MS + n}-0"


def payloads(client: redis.Redis, stream: str) -> list[str]:
    """Returns what a stream holds, straight from the server."""
    return [fields[b"data"].decode() for _, fields in client.xrange(stream)]


def read(spark: SparkSession, url: str, streams: str, schema: str | None = "data string", **options: Any) -> DataFrame:
    """Returns the entries of streams as a table."""
    reader = spark.read.format(FORMAT).options(**_words({"url": url, "streams": streams, **options}))
    return (reader.schema(schema) if schema else reader).load()


def read_stream(
    spark: SparkSession, url: str, streams: str, schema: str | None = "data string", **options: Any
) -> DataFrame:
    """Returns the entries of streams as a table that grows, from the first entry on."""
    given = {"url": url, "streams": streams, "startingOffsets": "earliest", **options}
    reader = spark.readStream.format(FORMAT).options(**_words(given))
    return (reader.schema(schema) if schema else reader).load()


def column(rows: DataFrame, name: str = "data") -> list[Any]:
    """Returns the values of a column, sorted."""
    return sorted((row[name] for row in rows.select(name).collect()), key=_natural)


def run_now(writer: DataStreamWriter) -> StreamingQuery:
    """Runs a query over all that is there, and raises what it raises."""
    query = writer.trigger(availableNow=True).start()
    finished(query)
    return query


def finished(query: StreamingQuery) -> None:
    """Waits until a query has ended by itself, and raises what it raises."""
    assert query.awaitTermination(PATIENCE_S), f"the query still ran after {PATIENCE_S} s: {query.status}"


def to_files(rows: DataFrame, place: Path | str, checkpoint: str) -> DataStreamWriter:
    """Returns a query that writes Parquet files."""
    return rows.writeStream.format("parquet").option("path", str(place)).option("checkpointLocation", checkpoint)


def to_stream(rows: DataFrame, url: str, stream: str, checkpoint: str) -> DataStreamWriter:
    """Returns a query that writes to a stream, exactly once."""
    writer = rows.writeStream.format(FORMAT).option("checkpointLocation", checkpoint)
    return writer.options(url=url, stream=stream)


def lags(query: StreamingQuery) -> list[dict[str, int | None]]:
    """Returns for each micro-batch how many entries of each stream were left behind it, as users can compute it."""
    found = []
    for progress in query.recentProgress:
        [source] = progress.sources
        found.append(lag(_offset(source.latestOffset), _offset(source.endOffset)))
    return found


def end_offset(query: StreamingQuery) -> Any:
    """Returns where the last micro-batch ended."""
    progress = query.lastProgress
    assert progress is not None
    return _offset(progress.sources[0].endOffset)


def batch_sizes(query: StreamingQuery) -> list[int]:
    """Returns how many rows each micro-batch had, empty ones left out."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def _offset(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _words(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: _word(value) for name, value in options.items() if value is not None}


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _natural(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def in_order(values: Iterable[str]) -> list[str]:
    """Returns numbers as texts in the order of the numbers."""
    return sorted(values, key=int)


def cluster_url(cluster: Cluster) -> str:
    """Returns the URL of a Redis Cluster."""
    return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
