"""Whatever ends a driver, and between whichever two steps: started again, the tables equal the input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from deltalake import DeltaTable

from penstock.redis.embedded import EmbeddedServer
from penstock.results import Result
from penstock.spark.pipeline import (
    Delta,
    Handler,
    Iceberg,
    Jdbc,
    Parquet,
    Pipeline,
    Postgres,
    RedisStreams,
    Results,
    Sql,
)
from penstock.spark.pipeline.files import Files
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.sync.results import FSBackend
from tests.spark.driver import Driver
from tests.spark.limits import HAS_LIMITS, limit
from tests.spark.pipeline.conftest import SHOP, add_orders, dead_letters, iceberg_catalogue, iceberg_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
Table = Callable[..., list[Any]]
ALL_STEPS = [
    "begun",
    "staged",
    "stage complete",
    "parquet written",
    "parquet shown",
    "delta written",
    "delta committed",
    "redis_streams written",
    "postgres staged",
    "postgres moved",
    "postgres committed",
    "done",
]


class Crash(Exception):
    """Ends a batch as the death of the driver would, as far as the sinks can tell."""


def crash_after(step: str) -> Callable[[str], None]:
    def mark(done: str) -> None:
        if done == step:
            raise Crash(step)

    return mark


def crash_after_each(run: RunOnce, pipeline: Pipeline, steps: list[str]) -> None:
    """Runs the pipeline once for each step and crashes after it."""
    for step in steps:
        with pytest.raises(PipelineFailed, match=f"Crash: {step}"):
            run(pipeline, mark=crash_after(step))


def traces(client: redis.Redis, missing: set[int]) -> str:
    """Returns what Redis knows of orders: their entries, and the batches in which they were given up."""
    entries = {entry_id: fields[b"data"] for entry_id, fields in client.xrange("orders")}
    lost = {entry_id: data for entry_id, data in entries.items() if data in {b'{"n": %d}' % n for n in missing}}
    marks = {key: client.smembers(key) & {*lost} for key in client.scan_iter("*spark-buried*")}
    return f"missing: {sorted(missing)}; entries: {lost}; noted as given up: {marks}"


def test_a_crash_after_any_step_loses_no_row_and_doubles_none(
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: RunOnce,
    table: Table,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    add_orders(stream_redis, 60)
    stream_redis.xadd("orders", {"data": "broken"})
    pipeline = pipeline_of(
        Handler(f"{SHOP}:fickle"),  # gives other rows whenever it runs again
        Sql("SELECT n, n % 2 AS parity, timestamp FROM input"),
        sinks=(
            Parquet(str(tmp_path / "table")),
            Delta(str(tmp_path / "delta"), partition_by=("parity",)),
            RedisStreams("copy"),
            Postgres(postgres.dsn, "orders", create=True),
        ),
        source_max_rows_per_batch=limit(40),
    )
    crash_after_each(run, pipeline, ALL_STEPS)
    add_orders(stream_redis, 5, first=60)
    run(pipeline)
    rows = table()
    assert sorted(json.loads(fields[b"data"])["n"] for _, fields in stream_redis.xrange("copy")) == rows
    assert [n for (n,) in postgres.execute("SELECT n FROM orders ORDER BY n")] == rows
    assert sorted(DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()["n"].to_pylist()) == rows
    letters = dead_letters(stream_redis)
    given_up = [json.loads(letter["data"])["n"] for letter in letters if letter["data"] != "broken"]
    assert sorted([*rows, *given_up]) == list(range(65)), traces(stream_redis, {*range(65)} - {*rows, *given_up})
    fates = {(letter["data"] != "broken", letter["dlq_reason"], letter["dlq_error"]) for letter in letters}
    assert fates <= {(True, "fatal", "FatalError"), (False, "decode_error", "DecodeError")}
    assert [letter["data"] for letter in letters].count("broken") == 1
    assert not list((tmp_path / "checkpoint" / "staging").glob("*.writing"))


@pytest.mark.parametrize("given", [{}, {"key": ("n",)}], ids=["append", "key"])
def test_rows_that_postgres_loses_from_the_stage_in_a_crash_are_noticed_and_written_again(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer, given: dict[str, Any]
) -> None:
    add_orders(stream_redis, 20)
    pipeline = pipeline_of(Sql("SELECT n FROM input"), sinks=(Postgres(postgres.dsn, "orders", create=True, **given),))
    run(pipeline)
    add_orders(stream_redis, 20, first=20)

    def crash(step: str) -> None:
        if step == "postgres staged":
            postgres.kill()
            postgres.start()

    with pytest.raises(PipelineFailed, match="holds 0 rows instead of the 20 of the batch") as caught:
        run(pipeline, mark=crash)
    assert caught.value.is_transient
    run(pipeline)
    assert [n for (n,) in postgres.execute("SELECT n FROM orders ORDER BY n")] == list(range(40))


LAKE_STEPS = [
    "iceberg written",
    "iceberg committed",
    "jdbc moved",
    "jdbc committed",
    "results saved",
]


@pytest.mark.slow
def test_catalogues_databases_and_results_survive_the_same(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, derby: str, tmp_path: Path
) -> None:
    add_orders(stream_redis, 60)
    catalogue, root = iceberg_catalogue(tmp_path), str(tmp_path / "results")
    pipeline = pipeline_of(
        Handler(f"{SHOP}:fickle"),
        Sql("SELECT n, n % 3 AS digit, concat('o-', n) AS name, headers, timestamp FROM input"),
        sinks=(
            Iceberg("shop.orders", catalogue, partition_by=("digit",)),
            Jdbc(derby, "orders", create=True, options={"createTableColumnTypes": "name VARCHAR(20)"}),
            Jdbc(derby, "digits", key=("digit",), create=True, name="digits"),
            Results(
                id="name", result_kind="order", columns=("n", "digit"), finished_at="timestamp", options={"root": root}
            ),
        ),
        source_max_rows_per_batch=limit(40),
    )
    crash_after_each(run, pipeline, LAKE_STEPS)
    add_orders(stream_redis, 5, first=60)
    run(pipeline)
    given_up = [json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)]
    rows = sorted(set(range(65)) - set(given_up))
    assert iceberg_rows(catalogue, "shop.orders", "n") == rows
    assert db(spark, derby, "orders", "n") == rows
    assert db(spark, derby, "digits", "digit") == sorted({n % 3 for n in rows})
    with FSBackend(root) as backend:
        found: list[Result] = list(backend.iter("order"))
    assert sorted(result.data["n"] for result in found) == rows
    assert {result.task_id for result in found} == {f"o-{n}" for n in rows}
    left = spark.read.format("jdbc").option("url", derby).option("query", "SELECT tablename FROM sys.systables").load()
    assert not [row[0] for row in left.collect() if row[0].startswith("PENSTOCK_") and "BATCHES" not in row[0]]


def db(spark: SparkSession, url: str, table: str, column: str) -> list[Any]:
    read = spark.read.format("jdbc").option("url", url).option("dbtable", table)
    return sorted(row[column] for row in read.load().collect())


@pytest.mark.slow
def test_one_table_needs_no_staging_and_survives_the_same(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, tmp_path: Path
) -> None:
    add_orders(stream_redis, 30)
    pipeline = pipeline_of(Handler(f"{SHOP}:fickle"), source_max_rows_per_batch=limit(20))
    steps = ["begun", "parquet written", "parquet shown", "done"]
    crash_after_each(run, pipeline, steps)
    run(pipeline)
    given_up = [json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)]
    assert sorted([*table(), *given_up]) == list(range(30))
    assert not (tmp_path / "checkpoint" / "staging").exists()


@pytest.mark.slow
def test_state_survives_the_same(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, tmp_path: Path
) -> None:
    add_orders(stream_redis, 20)
    add_orders(stream_redis, 25)  # the first 20 again
    sinks = (Parquet(str(tmp_path / "table")), Parquet(str(tmp_path / "other"), name="other"))
    pipeline = pipeline_of(sinks=sinks, watermark="1h", dedup=("message_id",), source_max_rows_per_batch=limit(30))
    steps = ["stage complete", "parquet shown"]
    crash_after_each(run, pipeline, steps)
    run(pipeline)
    assert table() == table(place="other") == list(range(25))


@pytest.mark.slow
def test_a_store_that_renames_file_by_file_survives_the_same(
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: RunOnce,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.spark.pipeline.files._ONE_STEP", ())
    rename, torn = Files.rename, []

    def torn_rename(self: Files, old: str, new: str) -> None:
        if Path(old).parent.name in torn:
            return rename(self, old, new)
        torn.append(Path(old).parent.name)
        shutil.copytree(old, new, ignore=lambda _, names: sorted(names)[-1:])  # all files but one
        raise Crash(f"torn {len(torn)}")

    monkeypatch.setattr(Files, "rename", torn_rename)
    add_orders(stream_redis, 30)
    sinks = (Parquet(str(tmp_path / "table")), Parquet(str(tmp_path / "other"), name="other"))
    pipeline = pipeline_of(Handler(f"{SHOP}:fickle"), sinks=sinks, source_max_rows_per_batch=limit(20))
    for number in (1, 2):
        with pytest.raises(PipelineFailed, match=f"Crash: torn {number}"):
            run(pipeline)
    run(pipeline)
    assert torn == ["staging", "_penstock"]
    given_up = [json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)]
    assert sorted([*table(), *given_up]) == list(range(30))
    assert table() == table(place="other")


KILLED = """
import os, signal, sys
from penstock.spark import session
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.running import Run

def mark(step):
    if step == "parquet shown":
        print("killed", flush=True)
        os.killpg(0, signal.SIGKILL)

spark = session("killed", "local[2]", short=True, conf={"spark.log.level": "ERROR"})
Run(Pipeline.from_file(sys.argv[1]), spark, once=True, mark=mark).run()
"""


def test_a_killed_driver_is_continued_by_the_next(
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    start_driver: Callable[..., Driver],
    run: RunOnce,
    table: Table,
    tmp_path: Path,
) -> None:
    add_orders(stream_redis, 50)
    stream_redis.xadd("orders", {"data": "broken"})
    file = tmp_path / "orders.toml"
    file.write_text(
        f"""
        name = "orders"
        checkpoint = "{tmp_path / "checkpoint"}"
        [source]
        url = "{stream_server.url}"
        streams = "orders"
        schema = "n bigint"
        {"max_rows_per_batch = 30" if HAS_LIMITS else ""}
        [[sink]]
        kind = "parquet"
        path = "{tmp_path / "table"}"
        [[sink]]
        kind = "redis_streams"
        stream = "copy"
        options.payload = "json"
        """
    )
    driver = start_driver(KILLED, str(file))
    driver.wait_for_line("killed")
    driver.kill()
    assert stream_redis.xlen("copy") == 0
    run(Pipeline.from_file(file))
    assert table() == list(range(50))
    assert sorted(json.loads(fields[b"data"])["n"] for _, fields in stream_redis.xrange("copy")) == list(range(50))
    assert len(dead_letters(stream_redis)) == 1
