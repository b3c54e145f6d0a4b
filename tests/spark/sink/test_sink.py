"""The sink in a real Spark: tasks that fail, drivers that are killed, queries that run twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from tests.helpers.threads import eventually
from tests.spark.driver import PATIENCE_S, Driver
from tests.spark.sink.rows import payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "redis_streams"
DRIVER = """
import sys
from penstock.spark.sessions import session
url, checkpoint, rows = sys.argv[1:]
spark = session("killed", "local[2]", short=True, conf={"spark.log.level": "ERROR"})
frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
writer = frame.selectExpr("lpad(value, 300, '0') as data").writeStream.format("redis_streams")
writer = writer.options(url=url, stream="s", batchSize=50, checkpointLocation=checkpoint)
query = writer.start()
print("started", flush=True)
query.awaitTermination()
"""


def numbers(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr("lpad(id, 300, '0') as data")


def save(frame: DataFrame, server: EmbeddedServer, **given: Any) -> None:
    texts = {name: str(value) for name, value in given.items()}
    frame.write.format(FORMAT).option("url", server.url).options(**texts).mode("append").save()


def failing_once(frame: DataFrame, marker: Path, at: int, server: EmbeddedServer, written: int) -> DataFrame:
    """Lets the task that comes to a row fail, the first time, when more than so many rows are in the stream."""
    address = server.unix_socket

    def raise_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if at in map(int, batch.column(0).to_pylist()) and not marker.exists():
                marker.touch()
                with redis.Redis(unix_socket_path=address) as client:
                    while client.xlen("s") <= written:  # what came before this batch is on its way to the writer
                        time.sleep(0.01)  # in a worker of Spark, which has nothing else to wait for
                raise OSError("the executor is lost")
            yield batch

    return frame.mapInArrow(raise_once, frame.schema)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows reach the writer in small batches, so that it has written some when a later one fails."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, 500)
    yield
    spark.conf.unset(name)


def test_a_data_frame_is_written(spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis) -> None:
    save(numbers(spark, 5_000), stream_server, stream="s")
    assert sorted(map(int, payloads(stream_redis))) == list(range(5_000))


def test_all_columns_become_one_object(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    frame = spark.sql(
        "select 1 as id, 'ü' as name, timestamp'2026-11-15 12:00:00' as at, array(1, 2) as n, map('a', 1) as m, "
        "named_struct('x', 1.50bd) as s, 'k' as key, map('h', 'v') as headers"
    )
    save(frame, stream_server, stream="s")
    [(_, fields)] = stream_redis.xrange("s")
    assert fields == {
        b"data": '{"id":1,"name":"ü","at":"2026-11-15T12:00:00Z","n":[1,2],"m":{"a":1},"s":{"x":1.50}}'.encode(),
        b"key": b"k",
        b"headers": b'{"h":"v"}',
    }


@pytest.mark.usefixtures("small_batches")
def test_a_repeated_task_writes_nothing_twice_under_a_write_id(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    frame = failing_once(numbers(spark, 20_000, 1), tmp_path / "failed", 15_000, stream_server, 0)
    save(frame, stream_server, stream="s", writeId="w", batchSize=100)
    assert (tmp_path / "failed").exists()
    assert sorted(map(int, payloads(stream_redis))) == list(range(20_000))
    save(numbers(spark, 20_000, 1), stream_server, stream="s", writeId="w")
    assert stream_redis.xlen("s") == 20_000, "and the whole write may be repeated"
    save(numbers(spark, 20_000, 1), stream_server, stream="s", writeId="w", batchId=1)
    assert stream_redis.xlen("s") == 40_000


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_without_a_write_id_a_repeated_task_writes_again(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    frame = failing_once(numbers(spark, 20_000, 1), tmp_path / "failed", 15_000, stream_server, 0)
    save(frame, stream_server, stream="s", batchSize=100)
    found = list(map(int, payloads(stream_redis)))
    assert set(found) == set(range(20_000))
    assert len(found) > 20_000


@pytest.mark.parametrize(
    ("sql", "given", "says"),
    [
        ("select 'a' as data", {"stream": "s", "strem": "t"}, "unknown option 'strem'"),
        ("select 'a' as data, 1 as user", {"stream": "s"}, "'user' cannot be written"),
        ("select cast(null as string) as data, 'k7' as key", {"stream": "s"}, "row 1 of the partition .key 'k7'."),
        ("select repeat('x', 20) as data", {"stream": "s", "maxPayloadBytes": 10}, "has 20 bytes"),
    ],
)
def test_errors_reach_the_user(
    spark: SparkSession, stream_server: EmbeddedServer, sql: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        save(spark.sql(sql), stream_server, **given)


def test_a_stream_is_not_overwritten(spark: SparkSession, stream_server: EmbeddedServer) -> None:
    writer = numbers(spark, 1).write.format(FORMAT).option("url", stream_server.url).option("stream", "s")
    with pytest.raises(Exception, match="append-only"):
        writer.mode("overwrite").save()


# --- streaming ------------------------------------------------------------------------------------


def start(frame: DataFrame, server: EmbeddedServer, checkpoint: str, **given: Any) -> StreamingQuery:
    texts = {name: str(value) for name, value in given.items()}
    writer = frame.writeStream.format(FORMAT).option("url", server.url).options(**texts)
    return writer.option("checkpointLocation", checkpoint).start()


def until(driver: Driver, condition: Callable[[], bool]) -> None:
    def is_true() -> bool:
        assert driver.is_alive(), driver.lines()
        return condition()

    eventually(is_true, PATIENCE_S)


def ticking(spark: SparkSession, rows: int = 1_000) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    return source.load().selectExpr("lpad(value, 300, '0') as data")


def until_batch(query: StreamingQuery, batch_id: int) -> None:
    def is_there() -> bool:
        assert query.isActive, query.exception()
        return query.lastProgress is not None and query.lastProgress["batchId"] >= batch_id

    eventually(is_there, PATIENCE_S)


@pytest.mark.usefixtures("small_batches")
def test_a_repeated_task_of_a_query_writes_nothing_twice(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, checkpoint: str, tmp_path: Path
) -> None:
    frame = failing_once(ticking(spark, 10_000), tmp_path / "failed", 18_000, stream_server, 10_000)
    query = start(frame, stream_server, checkpoint, stream="s", batchSize=100)
    until_batch(query, 2)
    query.stop()
    found = list(map(int, payloads(stream_redis)))
    assert (tmp_path / "failed").exists()
    assert len(found) == len(set(found)), "nothing comes twice"
    assert set(range(30_000)) <= set(found), "nothing is missing"


def test_a_batch_that_is_repeated_from_the_checkpoint_writes_nothing_twice(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, checkpoint: str
) -> None:
    query = start(ticking(spark), stream_server, checkpoint, stream="s")
    until_batch(query, 2)
    query.stop()
    commits = sorted(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()  # as if the driver had died before it noted the end of the batch
    Path(checkpoint, "commits", f".{commits[-1].name}.crc").unlink(missing_ok=True)
    query = start(ticking(spark), stream_server, checkpoint, stream="s")
    until_batch(query, int(commits[-1].name) + 2)
    query.stop()
    found = list(map(int, payloads(stream_redis)))
    assert len(found) == len(set(found))
    whole = 1_000 * (int(commits[-1].name) + 3)  # what comes behind may have been cut off when the query was stopped
    assert set(range(whole)) <= set(found)


@pytest.mark.slow
def test_of_two_queries_from_one_checkpoint_the_newer_one_writes(
    spark: SparkSession,
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    checkpoint: str,
    start_driver: Callable[..., Driver],
) -> None:
    old = start(ticking(spark), stream_server, checkpoint, stream="s")
    until_batch(old, 1)
    copied = checkpoint + "-copy"  # Spark itself sees to it that two do not use the same directory
    shutil.copytree(checkpoint, copied, ignore=shutil.ignore_patterns(".*"))
    new = start_driver(DRIVER, stream_server.url, copied, "1000")  # another driver: one alone would stop the old query
    with pytest.raises(Exception, match="a newer run of the same query does"):
        old.awaitTermination(240)
    length = stream_redis.xlen("s")
    until(new, lambda: stream_redis.xlen("s") >= length + 2_000)


@pytest.mark.slow
def test_a_driver_killed_in_the_middle_of_a_batch_goes_on_where_it_was(
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    checkpoint: str,
    start_driver: Callable[..., Driver],
) -> None:
    rows = 40_000
    for batch in range(2):
        driver = start_driver(DRIVER, stream_server.url, checkpoint, str(rows))
        least, most = batch * rows + 500, (batch + 2) * rows - 500
        # In the middle of a batch: some of its rows are there, and others are not.
        until(driver, lambda least=least, most=most: least < stream_redis.xlen("s") % 1_000_000 < most)
        driver.kill()
    killed_at = stream_redis.xlen("s")
    driver = start_driver(DRIVER, stream_server.url, checkpoint, str(rows))
    until(driver, lambda: stream_redis.xlen("s") >= killed_at + 2 * rows)
    driver.kill()
    found = list(map(int, payloads(stream_redis)))
    assert len(found) == len(set(found)), "nothing comes twice"
    whole = max(found) // rows * rows  # the last batch was cut off with the driver
    assert set(range(whole)) <= set(found), "nothing is missing"
