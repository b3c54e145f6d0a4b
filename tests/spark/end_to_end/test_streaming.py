"""Streaming queries: every entry once, at the pace that was asked for, and with what others are told about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import StreamingQueryException

from penstock.redis.embedded import EmbeddedServer
from penstock.sync import ConsumerGroup, StreamClient
from tests.helpers.threads import eventually
from tests.spark.driver import PATIENCE_S
from tests.spark.end_to_end.queries import (
    batch_sizes,
    column,
    end_offset,
    entry_id,
    fill,
    in_order,
    lags,
    numbers,
    payloads,
    read_stream,
    run_now,
    to_files,
    to_stream,
)
from tests.spark.limits import HAS_LIMITS, limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Read = Callable[..., "DataFrame"]


@pytest.fixture
def growing(spark: SparkSession, stream_server: EmbeddedServer) -> Read:
    def made(streams: str = "orders", schema: str | None = "data string", **options: Any) -> DataFrame:
        return read_stream(spark, stream_server.url, streams, schema, **options)

    return made


# --- pace -------------------------------------------------------------------------------------------


@pytest.mark.needs_limits
def test_a_limit_of_rows_is_kept_and_the_lag_is_told_after_each_batch(
    stream_redis: redis.Redis, stream_server: EmbeddedServer, growing: Read, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 100)
    query = run_now(to_stream(growing(maxRowsPerTrigger=30), stream_server.url, "copy", checkpoint))
    assert batch_sizes(query) == [30, 30, 30, 10]
    assert lags(query)[:4] == [{"orders": 70}, {"orders": 40}, {"orders": 10}, {"orders": 0}]
    assert payloads(stream_redis, "copy") == numbers(100)


@pytest.mark.needs_limits
def test_the_lag_is_told_for_each_stream(stream_redis: redis.Redis, growing: Read, checkpoint: str) -> None:
    fill(stream_redis, "a", 90)
    fill(stream_redis, "b", 10)
    rows = growing("a,b", maxRowsPerTrigger=50).writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = run_now(rows)
    assert lags(query)[0] == {"a": 45, "b": 5}
    assert lags(query)[-1] == {"a": 0, "b": 0}


def test_available_now_ends_though_entries_keep_coming(
    spark: SparkSession, stream_redis: redis.Redis, growing: Read, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 20)
    seen: list[str] = []

    def add_more(rows: DataFrame, _: int) -> None:
        found = column(rows)
        fill(stream_redis, "orders", 10, first=1_000 + len(seen))
        seen.extend(found)

    writer = growing(maxRowsPerTrigger=limit(10)).writeStream.foreachBatch(add_more)
    run_now(writer.option("checkpointLocation", checkpoint))
    assert seen == numbers(20)


def test_a_new_query_begins_at_the_end_of_the_stream(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 5)
    rows = read_stream(spark, stream_server.url, "orders", startingOffsets="latest")
    query = _to_memory(rows, "newest", checkpoint)
    eventually(lambda: query.lastProgress is not None, PATIENCE_S)
    fill(stream_redis, "orders", 3, first=5)
    query.processAllAvailable()
    assert column(spark.table("newest")) == numbers(5, 8)


def test_streams_of_a_pattern_are_found_while_the_query_runs(
    spark: SparkSession, stream_redis: redis.Redis, growing: Read, checkpoint: str
) -> None:
    fill(stream_redis, "orders:a", 3)
    query = _to_memory(growing("orders:*"), "found", checkpoint)
    query.processAllAvailable()
    assert column(spark.table("found")) == numbers(3)
    fill(stream_redis, "orders:b", 3, first=3)
    fill(stream_redis, "other", 3, first=100)
    eventually(lambda: spark.table("found").count() >= 6, PATIENCE_S)
    fill(stream_redis, "orders:b", 1, first=6)
    eventually(lambda: spark.table("found").count() >= 7, PATIENCE_S)
    assert column(spark.table("found")) == numbers(7)


# --- stopping and going on ----------------------------------------------------------------------------


def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, growing: Read, tmp_path: Path
) -> None:
    files, first, second = tmp_path / "files", str(tmp_path / "first"), str(tmp_path / "second")
    for n in range(3):
        fill(stream_redis, "orders", 10, first=10 * n)
        run_now(to_files(growing(maxRowsPerTrigger=limit(7)), files, first))
        run_now(to_stream(growing(maxRowsPerTrigger=limit(7)), stream_server.url, "copy", second))
        assert column(spark.read.parquet(str(files))) == numbers(10 * n + 10)
        assert payloads(stream_redis, "copy") == numbers(10 * n + 10)


def test_the_order_of_a_stream_is_kept_from_stream_to_stream(
    stream_redis: redis.Redis, stream_server: EmbeddedServer, growing: Read, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 200)
    run_now(to_stream(growing(), stream_server.url, "copy", checkpoint))
    assert payloads(stream_redis, "copy") == numbers(200)


# --- what is gone -------------------------------------------------------------------------------------


def _lose_seven(stream_redis: redis.Redis, growing: Read, checkpoint: str, seen: list[str]) -> None:
    fill(stream_redis, "orders", 10)
    run_now(_collect(growing(), seen, checkpoint))
    fill(stream_redis, "orders", 10, first=10)
    stream_redis.xtrim("orders", minid=entry_id(17), approximate=False)


def test_entries_that_are_trimmed_before_they_are_read_stop_the_query(
    stream_redis: redis.Redis, growing: Read, checkpoint: str
) -> None:
    seen: list[str] = []
    _lose_seven(stream_redis, growing, checkpoint, seen)
    told = rf"stream 'orders': 7 entries after {entry_id(9)} and before {entry_id(17)} are lost.*failOnDataLoss=false"
    with pytest.raises(StreamingQueryException, match=told):
        run_now(_collect(growing(), seen, checkpoint))
    assert seen == numbers(10)


def test_entries_that_are_trimmed_before_they_are_read_are_counted_if_that_is_allowed(
    stream_redis: redis.Redis, growing: Read, checkpoint: str
) -> None:
    seen: list[str] = []
    _lose_seven(stream_redis, growing, checkpoint, seen)
    query = run_now(_collect(growing(failOnDataLoss=False), seen, checkpoint))
    assert in_order(seen) == numbers(10) + numbers(17, 20)
    if HAS_LIMITS:  # else the end of a batch is written before its beginning is known
        assert end_offset(query)["s"]["orders"]["lost"] == 7


def test_a_stream_that_is_deleted_stops_the_query(stream_redis: redis.Redis, growing: Read, checkpoint: str) -> None:
    seen: list[str] = []
    fill(stream_redis, "orders", 10)
    run_now(_collect(growing(), seen, checkpoint))
    stream_redis.delete("orders")
    with pytest.raises(StreamingQueryException, match="the stream was deleted"):
        run_now(_collect(growing(), seen, checkpoint))


# --- the shadow of a query ----------------------------------------------------------------------------


@pytest.mark.needs_limits
def test_a_group_shows_what_is_committed_and_retention_keeps_the_rest(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, growing: Read, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 30)
    seen: list[str] = []
    shown: list[str] = []
    with StreamClient.from_url(stream_server.url) as client:
        retention = ConsumerGroup(client, "orders", "spark")

        def take(rows: DataFrame, _: int) -> None:
            groups = stream_redis.xinfo_groups("orders")
            shown.append(groups[0]["last-delivered-id"].decode() if groups else "none")
            retention.trim(keep=0)  # as the janitor of any consumer of the stream does
            seen.extend(column(rows))

        def run() -> None:
            writer = growing(group="spark", maxRowsPerTrigger=10).writeStream.foreachBatch(take)
            run_now(writer.option("checkpointLocation", checkpoint))

        run()
        assert seen == numbers(30)
        assert shown[1:] == [entry_id(9), entry_id(19)]
        # When the run is over, all of it is committed, and nobody needs it any more.
        assert retention.lag().count == 0
        retention.trim(keep=0)
        assert stream_redis.xlen("orders") == 0
        fill(stream_redis, "orders", 10, first=30)
        retention.trim(keep=0)
        run()
    assert seen == numbers(40)


def test_a_group_that_has_workers_is_not_taken_over(stream_redis: redis.Redis, growing: Read, checkpoint: str) -> None:
    fill(stream_redis, "orders", 10)
    stream_redis.xgroup_create("orders", "workers", "0")
    stream_redis.xreadgroup("workers", "w-1", {"orders": ">"}, count=2)
    seen: list[str] = []
    with pytest.raises(StreamingQueryException, match="moving it would make its workers skip messages"):
        run_now(_collect(growing(group="workers"), seen, checkpoint))
    assert seen == []
    assert stream_redis.xinfo_groups("orders")[0]["last-delivered-id"].decode() == entry_id(1)


@pytest.mark.needs_limits
def test_a_query_without_its_checkpoint_can_begin_where_its_group_is(
    stream_redis: redis.Redis, growing: Read, tmp_path: Path
) -> None:
    fill(stream_redis, "orders", 10)
    seen: list[str] = []
    run_now(_collect(growing(group="spark"), seen, str(tmp_path / "first")))
    fill(stream_redis, "orders", 5, first=10)
    run_now(_collect(growing(group="spark", startingOffsets="group"), seen, str(tmp_path / "second")))
    assert in_order(seen) == numbers(15)


# --- what a user is told ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("streams", "options", "told"),
    [
        ("nowhere", {}, "stream 'nowhere' does not exist"),
        ("orders", {"endingOffsets": "latest"}, "a stream has no end"),
        ("orders", {"view": "pending", "group": "g", "startingOffsets": None}, "view=pending is a snapshot"),
        ("orders", {"minRowsPerTrigger": 9, "maxRowsPerTrigger": 5}, "must not exceed maxRowsPerTrigger"),
    ],
)
def test_what_is_wrong_is_told(
    stream_redis: redis.Redis, growing: Read, checkpoint: str, streams: str, options: dict[str, Any], told: str
) -> None:
    fill(stream_redis, "orders", 1)
    with pytest.raises(Exception, match=told):  # by now it may be Spark's AnalysisException, or that of the query
        run_now(_collect(growing(streams, None, **options), [], checkpoint))


# --- sinks of the tests -------------------------------------------------------------------------------


def _to_memory(rows: DataFrame, name: str, checkpoint: str) -> StreamingQuery:
    writer = rows.writeStream.format("memory").queryName(name).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="0 seconds").start()


def _collect(rows: DataFrame, seen: list[str], checkpoint: str) -> Any:
    def take(batch: DataFrame, _: int) -> None:
        seen.extend(column(batch))

    return rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
