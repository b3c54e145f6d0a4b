"""The archive as a table, with and without the hot tail: every entry once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.errors import ConfigurationError, DataLost, StreamMissing
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import ArchiveRun, compact, read
from tests.spark.archive.streams import Stream, archive, flip_a_bit_of_the_payload, opened
from tests.spark.end_to_end.queries import (
    START_MS,
    batch_sizes,
    column,
    entry_id,
    fill,
    finished,
    read_stream,
    run_now,
    to_files,
)
from tests.spark.end_to_end.queries import numbers as texts
from tests.spark.end_to_end.queries import read as read_hot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def root(spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path) -> Path:
    """Two streams of 200, archived; 100 more are in Redis alone."""
    fill(stream_redis, "orders", 200)
    for n in range(200):
        headers = '{"a":"b"}'
        stream_redis.xadd("rich", {"data": f"{n}", "key": f"k{n}", "headers": headers, "x": b"\xff", "message_id": "m"})
    place = tmp_path / "cold"
    run = ArchiveRun(place, "orders,rich", {"url": stream_server.url}, max_batch_rows=150)
    finished(run.start(spark, once=True))
    fill(stream_redis, "orders", 100, first=200)
    return place


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(bytes(row["data"])) for row in rows.select("data").collect())


def table(rows: DataFrame) -> Counter[Any]:
    return Counter(
        (r["stream"], r["id"], r["ms"], r["seq"], r["timestamp"], r["data"], r["key"], str(r["headers"]), r["message_id"],
         str(sorted(r["fields"].items())))
        for r in rows.collect()
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs_limits
def test_the_source_reads_both_as_one_stream_while_the_archive_goes_on(
    spark: SparkSession, root: Path, stream_redis: redis.Redis, stream_server: EmbeddedServer, tmp_path: Path
) -> None:
    url = stream_server.url
    truth = table(read_hot(spark, url, "orders,rich", schema=None))
    stream_redis.xtrim("orders", minid=entry_id(200), approximate=False)  # exactly what is archived
    stream_redis.xtrim("rich", maxlen=0)
    assert table(read_hot(spark, url, "orders,rich", schema=None, archive=root, minPartitions=3)) == truth
    since = read_hot(spark, url, "orders", archive=root, startingTimestamp=START_MS + 150)
    assert column(since) == texts(150, 300)

    rows = read_stream(spark, url, "orders", archive=root, maxRowsPerTrigger=120)
    query = run_now(to_files(rows, tmp_path / "files", str(tmp_path / "to-files")))
    assert batch_sizes(query) == [120, 120, 60]
    assert column(spark.read.parquet(str(tmp_path / "files"))) == texts(300)

    seen: list[str] = []

    def archive_and_take(rows: DataFrame, batch: int) -> None:  # between the plan of a batch and its tasks
        if not batch:
            finished(ArchiveRun(root, "orders,rich", {"url": url}).start(spark, once=True))
            stream_redis.xtrim("orders", maxlen=0, approximate=False)
        seen.extend(column(rows))

    late = read_hot(spark, url, "orders", archive=root)
    both = read(spark, root, "orders", hot={"url": url})
    rows = read_stream(spark, url, "orders", archive=root, maxRowsPerTrigger=250)
    run_now(rows.writeStream.foreachBatch(archive_and_take).option("checkpointLocation", str(tmp_path / "taken")))
    assert seen == texts(300)
    assert column(late) == texts(300)  # planned before
    assert not stream_redis.xlen("orders")
    assert numbers(both) == list(range(300))


@pytest.mark.needs_limits
def test_cold_and_hot_are_one_table_without_gap_or_repetition(
    spark: SparkSession, root: Path, stream_redis: redis.Redis, stream_server: EmbeddedServer
) -> None:
    hot = {"url": stream_server.url}
    truth = table(read_hot(spark, stream_server.url, "orders,rich", schema=None))
    assert table(read(spark, root, hot=hot)) == truth
    assert numbers(read(spark, root, "orders")) == list(range(200))

    compact(root, grace_s=0)
    stream_redis.xtrim("orders", minid=entry_id(200), approximate=False)  # exactly what is archived
    assert table(read(spark, root, hot=hot)) == truth
    low, high = START_MS + 50, START_MS + 250
    assert numbers(read(spark, root, "orders", low, high, hot=hot)) == list(range(50, 250))
    assert numbers(read(spark, root, ["orders"], low)) == list(range(50, 200))

    [file] = root.glob("stream=orders/day=*/*")
    flip_a_bit_of_the_payload(file)
    with pytest.raises(Exception, match=r"(?i)crc"):
        table(read(spark, root, "orders"))
    flip_a_bit_of_the_payload(file)

    late = read(spark, root, "orders", hot=hot)
    stream_redis.xtrim("orders", minid=entry_id(210), approximate=False)  # after the table was made
    with pytest.raises(Exception, match="10 entries"):
        late.count()
    with pytest.raises(DataLost, match=r"between the archive and Redis: .* 10 entries"):
        read(spark, root, "orders", hot=hot)
    assert numbers(read(spark, root, "orders", hot=hot, fail_on_data_loss=False)) == [*range(200), *range(210, 300)]
    stream_redis.delete("orders")
    with pytest.raises(DataLost, match="the stream was deleted"):
        read(spark, root, "orders", hot=hot)

    with pytest.raises(StreamMissing, match="'nobody'"):
        read(spark, root, "nobody")
    with pytest.raises(StreamMissing, match="neither in the archive nor in Redis"):
        read(spark, root, "nobody", hot=hot)
    with pytest.raises(ConfigurationError, match="must be before"):
        read(spark, root, "orders", high, low)
    with pytest.raises(ConfigurationError, match="from='yesterday'"):
        read(spark, root, "orders", "yesterday")
    with pytest.raises(ConfigurationError, match="there is no archive"):
        read(spark, root / "nowhere")


def test_names_that_read_like_a_list_or_a_pattern_are_names(
    spark: SparkSession, tmp_path: Path, stream_redis: redis.Redis, stream_server: EmbeddedServer
) -> None:
    root = tmp_path / "cold"
    for name in ("a,b", "x[1]"):
        stream = Stream(name)
        stream.add(8)
        archive(opened(root), stream, 0, 5)
        for entry, fields in stream.entries:
            stream_redis.xadd(name, fields, id=entry)
        stream_redis.xadd("x1", {"data": "another stream"}, id="*")
    found = read(spark, root, ["a,b", "x[1]"], hot={"url": stream_server.url})
    counts = {row["stream"]: row["count"] for row in found.groupBy("stream").count().collect()}
    assert counts == {"a,b": 8, "x[1]": 8}
