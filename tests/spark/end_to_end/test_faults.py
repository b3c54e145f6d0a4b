"""Whatever breaks in the middle of a query, what comes out is what went in: each row once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import StreamingQueryException

from penstock.redis.embedded import EmbeddedServer
from penstock.testing import Cluster
from tests.helpers.threads import Task, eventually, join, start
from tests.redis.slots import SlotMove
from tests.spark.clusters import Standalone
from tests.spark.driver import PATIENCE_S, Driver
from tests.spark.end_to_end.copying import LAST, MIDDLE, start_both
from tests.spark.end_to_end.gates import OPEN, REACHED, failing_once
from tests.spark.end_to_end.queries import (
    cluster_url,
    column,
    entry_id,
    fill,
    finished,
    in_order,
    numbers,
    payloads,
    read,
    read_stream,
    run_now,
    to_files,
    to_stream,
)
from tests.spark.limits import HAS_LIMITS, limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Both sinks at once: the queries of the driver that is killed.
_COPY = """
import json, sys
from penstock.spark import session
from tests.spark.end_to_end.copying import start_both
place, url, socket, conf, options = *sys.argv[1:4], json.loads(sys.argv[4]), json.loads(sys.argv[5])
spark = session(master=conf.pop("master"), short=True, conf=conf)
for query in start_both(spark, place, url, socket, **options):
    query.awaitTermination()
print("copied")
spark.stop()
"""


@pytest.fixture
def few_rows(spark: SparkSession) -> Iterator[None]:
    """Rows go between Spark and Python in small batches, so that there is a middle."""
    before = spark.conf.get(ARROW_ROWS)
    spark.conf.set(ARROW_ROWS, "10")
    yield
    spark.conf.set(ARROW_ROWS, str(before))


# --- tasks ------------------------------------------------------------------------------------------


def test_a_task_that_fails_in_the_middle_is_repeated_with_the_same_rows(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, few_rows: None, tmp_path: Path
) -> None:
    fill(stream_redis, "orders", 100)
    table = read(spark, stream_server.url, "orders").mapInArrow(failing_once(), "data string")
    assert column(table) == numbers(100)

    rows = read_stream(spark, stream_server.url, "orders").mapInArrow(failing_once(), "data string")
    run_now(to_files(rows, tmp_path / "files", str(tmp_path / "first")))
    run_now(to_stream(rows, stream_server.url, "copy", str(tmp_path / "second")).option("batchSize", "5"))
    assert column(spark.read.parquet(str(tmp_path / "files"))) == numbers(100)
    assert in_order(payloads(stream_redis, "copy")) == numbers(100)


def test_entries_that_are_trimmed_between_plan_and_task_are_named(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 20)
    seen: list[str] = []

    def trim_and_take(rows: DataFrame, _: int) -> None:
        stream_redis.xtrim("orders", minid=entry_id(8), approximate=False)
        seen.extend(column(rows))

    writer = read_stream(spark, stream_server.url, "orders").writeStream.foreachBatch(trim_and_take)
    told = rf"stream 'orders': 8 entries after \S+ and before {entry_id(8)} are lost"
    with pytest.raises(StreamingQueryException, match=told):
        run_now(writer.option("checkpointLocation", checkpoint))
    assert seen == []


# --- drivers and executors ----------------------------------------------------------------------------


def outputs(spark: SparkSession, place: Path, stream_redis: redis.Redis) -> tuple[list[str], list[str]]:
    """Returns what is in the files and in the stream that both queries write to."""
    return column(spark.read.parquet(str(place / "files"))), in_order(payloads(stream_redis, "copy"))


def finish(spark: SparkSession, place: Path, server: EmbeddedServer) -> None:
    """Runs both queries once more from their checkpoints, until all is copied."""
    for query in start_both(spark, str(place), server.url, server.unix_socket):
        finished(query)


@pytest.mark.slow
def test_a_driver_that_is_killed_before_a_commit_loses_and_doubles_nothing(
    spark: SparkSession, start_driver: Callable[..., Driver], stream_server: EmbeddedServer, stream_redis: redis.Redis,
    few_rows: None, tmp_path: Path,
) -> None:  # fmt: skip
    fill(stream_redis, "orders", 100)
    driver = start_copying(start_driver, tmp_path, stream_server, wait_in_batch=MIDDLE)
    eventually(lambda: stream_redis.scard(REACHED) == 2, PATIENCE_S)
    for query in ("to-files", "to-stream"):
        assert (tmp_path / query / "offsets" / str(MIDDLE)).exists()
        assert not (tmp_path / query / "commits" / str(MIDDLE)).exists()
    # The batch that is cut off has left its mark: rows that are there, but not yet counted as written.
    driver.kill()
    assert len(payloads(stream_redis, "copy")) < 100
    fill(stream_redis, "orders", 20, first=100)
    finish(spark, tmp_path, stream_server)
    assert outputs(spark, tmp_path, stream_redis) == (numbers(120), numbers(120))


@pytest.mark.slow
def test_a_driver_that_is_killed_after_a_commit_loses_and_doubles_nothing(
    spark: SparkSession, start_driver: Callable[..., Driver], stream_server: EmbeddedServer, stream_redis: redis.Redis,
    few_rows: None, tmp_path: Path,
) -> None:  # fmt: skip
    fill(stream_redis, "orders", 100)
    driver = start_copying(start_driver, tmp_path, stream_server, is_endless=True)
    for query in ("to-files", "to-stream"):
        eventually((tmp_path / query / "commits" / str(LAST)).exists, PATIENCE_S)
    driver.kill()
    fill(stream_redis, "orders", 20, first=100)
    finish(spark, tmp_path, stream_server)
    assert outputs(spark, tmp_path, stream_redis) == (numbers(120), numbers(120))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="executors are found in /proc")
def test_an_executor_that_is_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    spark: SparkSession, start_driver: Callable[..., Driver], standalone: Standalone, stream_server: EmbeddedServer,
    stream_redis: redis.Redis, tmp_path: Path,
) -> None:  # fmt: skip
    fill(stream_redis, "orders", 100)
    conf = {**standalone.conf, "master": standalone.url}
    driver = start_copying(start_driver, tmp_path, stream_server, conf, wait_in_batch=MIDDLE)
    eventually(lambda: stream_redis.scard(REACHED) == 2, PATIENCE_S)
    eventually(lambda: len(executors_of(standalone)) == 2, PATIENCE_S)  # each with the task of one query
    for pid in executors_of(standalone):
        os.kill(pid, signal.SIGKILL)
    stream_redis.lpush(OPEN, *["go"] * 10)
    driver.wait_for_line("^copied$")
    assert outputs(spark, tmp_path, stream_redis) == (numbers(100), numbers(100))


def start_copying(
    start_driver: Callable[..., Driver], place: Path, server: EmbeddedServer, conf: dict[str, str] | None = None,
    **options: Any,
) -> Driver:  # fmt: skip
    """Starts a driver that runs both queries."""
    settings = json.dumps({"master": "local[2,4]", ARROW_ROWS: "10", **(conf or {})})
    return start_driver(_COPY, str(place), server.url, server.unix_socket, settings, json.dumps(options))


def executors_of(cluster: Standalone) -> list[int]:
    """Returns the executors that the workers of a cluster have started: Javas in the process groups of the workers."""
    groups = {worker.pid for worker in cluster.workers}
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            is_executor = b"CoarseGrainedExecutorBackend" in (place / "cmdline").read_bytes()
            if is_executor and os.getpgid(int(place.name)) in groups:
                found.append(int(place.name))
    return found


# --- servers ----------------------------------------------------------------------------------------


def through(spark: SparkSession, url: str, checkpoint: str, trouble: Callable[[int], Any], **options: Any) -> list[str]:
    """Runs a query in micro-batches of ten, with some trouble between the plan of each and its tasks."""
    seen: list[str] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        trouble(batch_id)
        seen.extend(column(rows))

    rows = read_stream(spark, url, "orders", maxRowsPerTrigger=limit(10), **options)
    run_now(rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint))
    return seen


@pytest.mark.rotates
def test_a_query_outlives_a_restart_of_redis(
    spark: SparkSession, start_server: Callable[..., EmbeddedServer], checkpoint: str, tmp_path: Path
) -> None:
    server = start_server(directory=tmp_path / "redis", port=0)
    with redis.Redis.from_url(server.url) as client:
        fill(client, "orders", 20)
    returning: list[Task] = []

    def restart(_: int) -> None:
        for task in returning:
            join(task, PATIENCE_S)
        server.kill()
        returning.append(start(come_back))

    def come_back() -> None:  # when a task has begun to miss it
        status = spark.sparkContext.statusTracker()
        eventually(lambda: any(_is_running(status, stage) for stage in status.getActiveStageIds()), PATIENCE_S)
        server.start()

    assert through(spark, server.url, checkpoint, restart) == numbers(20)
    for task in returning:
        join(task, PATIENCE_S)
    assert len(returning) == (2 if HAS_LIMITS else 1)


def _is_running(status: Any, stage: int) -> bool:
    info = status.getStageInfo(stage)
    return info is not None and info.numActiveTasks > 0


@pytest.mark.rotates
def test_a_query_outlives_a_server_that_pauses(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, checkpoint: str
) -> None:
    fill(stream_redis, "orders", 20)
    options = {"redis.socket_timeout": "0.3"}
    pause = lambda _: stream_redis.client_pause(1_500)  # noqa: E731
    assert through(spark, stream_server.url, checkpoint, pause, **options) == numbers(20)


@pytest.mark.rotates
@pytest.mark.needs_limits
def test_a_query_outlives_a_slot_that_moves(spark: SparkSession, cluster: Cluster, checkpoint: str) -> None:
    with redis.RedisCluster(*cluster.addresses[0]) as client:
        fill(client, "orders", 30)
    move = SlotMove(cluster, "orders")
    steps = [move.begin, move.move, move.finish]  # nothing, ASK, MOVED
    assert through(spark, cluster_url(cluster), checkpoint, lambda batch_id: steps[batch_id]()) == numbers(30)
