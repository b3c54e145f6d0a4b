"""A row that a sink cannot take goes to the dead letters, once, and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import redis
from deltalake import DeltaTable

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
from penstock.spark.pipeline.rejected_rows import Origin
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.spark.pipeline.sinks.iceberg import IcebergWriter
from penstock.spark.pipeline.sinks.jdbc_connection import JdbcDatabase
from penstock.spark.pipeline.sinks.staged import bisected
from penstock.spark.pipeline.sinks.writer import FileSink
from penstock.spark.pipeline.validation import PipelineInvalid
from penstock.sync.results import FSBackend
from tests.spark.pipeline.conftest import SHOP, dead_letters, iceberg_catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
Table = Callable[..., list[Any]]
DAY = "date_add(day, IF(year(day) = 9999, 800, 0)) AS day"
SCHEMA = "n bigint NOT NULL, word string, day date"


def add(client: redis.Redis, *orders: dict[str, Any]) -> None:
    for order in orders:
        client.xadd("orders", {"data": json.dumps(order)})


def refused(client: redis.Redis) -> dict[int, str]:
    """Returns the text of each dead letter by the number of its order."""
    letters = dead_letters(client)
    assert {(letter["dlq_reason"], letter["dlq_error"]) for letter in letters} == {("invalid", "RowRefused")}
    found = {json.loads(letter["data"])["n"]: letter["dlq_error_text"] for letter in letters}
    assert len(found) == len(letters)
    return found


def test_whatever_postgres_refuses_is_a_dead_letter_and_stays_one(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer
) -> None:
    """Also when the driver dies in between, and the database would take the row by then."""
    postgres.execute("CREATE TABLE orders (n smallint CHECK (n <> 3), word varchar(5) NOT NULL, day date)")
    add(stream_redis, *({"n": n, "word": "fine", "day": "2026-11-16"} for n in (0, 1, 2, 3, 4)))
    add(stream_redis, {"n": 5, "word": "a\0b"}, {"n": 6, "word": "too long"}, {"n": 70_000, "word": "x"}, {"n": 8})
    add(stream_redis, {"n": 9, "word": "x", "day": "9999-12-31"}, {"n": 10, "word": "fine"})
    steps = (
        Handler(f"{SHOP}:diligent"),
        Sql(f"SELECT n, word, {DAY}, stream AS _stream, id AS _id FROM input"),
    )
    pipeline = pipeline_of(*steps, sinks=(Postgres(postgres.dsn, "orders"),), source_schema=SCHEMA)

    def die(step: str) -> None:
        if step == "refused":
            raise RuntimeError("the driver dies")

    with pytest.raises(PipelineFailed, match="the driver dies"):
        run(pipeline, mark=die)
    assert not postgres.execute("SELECT n FROM orders")
    postgres.execute("ALTER TABLE orders ALTER n TYPE bigint")
    run(pipeline)
    assert postgres.execute("SELECT n FROM orders ORDER BY n") == [(0,), (1,), (2,), (4,), (10,)]
    told = refused(stream_redis)
    assert sorted(told) == [3, 5, 6, 8, 9, 70_000]
    assert "column 'word' PostgreSQL text fields cannot contain NUL" in told[5]
    assert "column 'word' value too long" in told[6]
    assert "column 'n' value \"70000\" is out of range" in told[70_000]
    assert "column 'word' null value" in told[8]
    assert "column 'day' is outside the years 1 to 9999" in told[9]
    assert "check constraint" in told[3]
    assert told[5].startswith("sink 'postgres' rejected the row ")


def test_a_constraint_that_is_checked_at_the_end_of_a_transaction_refuses_single_rows(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer
) -> None:
    postgres.execute("CREATE TABLE known (n bigint PRIMARY KEY); INSERT INTO known VALUES (0), (2)")
    postgres.execute("CREATE TABLE orders (n bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED)")
    add(stream_redis, *({"n": n} for n in (0, 1, 2)))
    run(
        pipeline_of(Sql("SELECT n, stream AS _stream, id AS _id FROM input"), sinks=(Postgres(postgres.dsn, "orders"),))
    )
    assert postgres.execute("SELECT n FROM orders ORDER BY n") == [(0,), (2,)]
    assert "violates foreign key constraint" in refused(stream_redis)[1]


@pytest.mark.slow
def test_each_sink_refuses_for_itself(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, postgres: PostgresServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    postgres.execute("CREATE TABLE orders (n int UNIQUE, word text, penstock_order text)")
    words = {0: "fine", 1: "x" * 300, 2: "a\0b", 3: "b a d", 4: "", 5: "good", 6: None}
    add(stream_redis, *({"n": n, "word": word} for n, word in words.items()))
    sinks = (
        Parquet(str(tmp_path / "table"), partition_by=("word",)),
        Postgres(postgres.dsn, "orders", key=("n",)),
        Results(id="word", result_kind="word", options={"root": str(tmp_path / "results")}),
        RedisStreams("copy", options={"maxPayloadBytes": "100"}),
    )
    run(pipeline_of(Sql("SELECT n, word, stream AS _stream, id AS _id FROM input"), sinks=sinks, source_schema=SCHEMA))
    assert table() == [0, 3, 4, 5, 6]
    assert postgres.execute("SELECT n FROM orders ORDER BY n") == [(0,), (1,), (3,), (4,), (5,), (6,)]
    with FSBackend(tmp_path / "results") as backend:
        assert sorted(result.task_id for result in backend.iter()) == ["fine", "good"]
    copied = [json.loads(fields[b"data"]) for _, fields in stream_redis.xrange("copy")]
    assert sorted(order["n"] for order in copied) == [0, 2, 3, 4, 5, 6]
    assert all("_id" not in order for order in copied)
    told = [letter["dlq_error_text"] for letter in dead_letters(stream_redis)]
    sinks_of = {
        n: sorted(text.split("'")[1] for text in told if f"{{{n}, " in text or f"'n': {n}," in text) for n in words
    }
    assert sinks_of == {
        0: [], 1: ["parquet", "redis_streams", "results"], 2: ["parquet", "postgres", "results"], 3: ["results"],
        4: ["results"], 5: [], 6: ["results"],
    }  # fmt: skip


def test_a_row_of_no_known_origin_is_told_with_its_column_and_stops_the_pipeline(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer
) -> None:
    add(stream_redis, {"n": 1, "word": "a\0b"}, {"n": 2, "word": "fine"})
    sink = Postgres(postgres.dsn, "orders", create=True)
    with pytest.raises(PipelineFailed) as caught:
        run(pipeline_of(Sql("SELECT n, word FROM input"), sinks=(sink,), source_schema=SCHEMA))
    told = str(caught.value)
    assert "sink 'postgres' rejected the row" in told
    assert "column 'word' PostgreSQL text fields cannot contain NUL" in told
    assert "`stream AS _stream, id AS _id`" in told
    assert "\n" not in told
    assert not dead_letters(stream_redis)


@pytest.mark.rotates
def test_steps_that_were_changed_after_a_failure_make_the_batch_anew_if_no_sink_has_it(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer
) -> None:
    add(stream_redis, {"n": 1, "word": "a\0b"}, {"n": 2, "word": "fine"})
    sinks = (Postgres(postgres.dsn, "orders", create=True), RedisStreams("copy"))
    with pytest.raises(PipelineFailed, match="rejected the row"):
        run(pipeline_of(Sql("SELECT n, word FROM input"), sinks=sinks, source_schema=SCHEMA))
    mended = Sql("SELECT n + 10 AS n, replace(word, char(0), '') AS word FROM input")
    run(pipeline_of(mended, sinks=sinks, source_schema=SCHEMA))
    assert postgres.execute("SELECT n, word FROM orders ORDER BY n") == [(11, "ab"), (12, "fine")]
    assert sorted(json.loads(fields[b"data"])["n"] for _, fields in stream_redis.xrange("copy")) == [11, 12]


@pytest.mark.rotates
@pytest.mark.parametrize("first", ["parquet", "redis_streams"])
def test_steps_that_were_changed_after_a_sink_had_the_batch_are_told(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer, tmp_path: Path, first: str
) -> None:
    add(stream_redis, {"n": 1, "word": "a\0b"}, {"n": 2, "word": "fine"})
    other = Parquet(str(tmp_path / "table")) if first == "parquet" else RedisStreams("copy")
    sinks = (other, Postgres(postgres.dsn, "orders", create=True))
    steps = Sql("SELECT n, word FROM input")
    with pytest.raises(PipelineFailed, match="rejected the row"):
        run(pipeline_of(steps, sinks=sinks, source_schema=SCHEMA))
    with pytest.raises(
        PipelineFailed, match=f"sink '{first}' already has rows of batch 0 from the old steps.*restore the old steps"
    ):
        run(pipeline_of(Sql("SELECT n, 'x' AS word FROM input"), sinks=sinks, source_schema=SCHEMA))
    postgres.execute("ALTER TABLE orders ALTER word TYPE bytea USING ''")
    with pytest.raises(PipelineInvalid):  # the stage was kept for those who made it
        run(pipeline_of(steps, sinks=sinks, source_schema=SCHEMA))
    assert list((tmp_path / "checkpoint" / "staging").iterdir())


@pytest.mark.rotates
def test_a_sink_that_is_added_before_a_batch_is_repeated_gets_all_of_it(
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: RunOnce,
    table: Table,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    add(stream_redis, *({"n": n, "word": "a\0b" if n == 1 else "fine"} for n in range(4)))
    sink = Postgres(postgres.dsn, "orders", create=True, where="n < 2")
    steps = Sql("SELECT n, word, stream AS _stream, id AS _id FROM input")

    def die(step: str) -> None:
        if step == "refused":
            raise RuntimeError("the driver dies")

    with pytest.raises(PipelineFailed, match="the driver dies"):
        run(pipeline_of(steps, sinks=(sink,), source_schema=SCHEMA), mark=die)
    run(pipeline_of(steps, sinks=(sink, Parquet(str(tmp_path / "table"))), source_schema=SCHEMA))
    assert postgres.execute("SELECT n FROM orders") == [(0,)]
    assert table() == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_database_behind_jdbc_says_which_rows_it_refuses(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, derby: str
) -> None:
    """Those that it takes into no table (a day in the year 10002), and those that it does not take into this one."""
    sink = Jdbc(derby, "orders", key=("n",))
    with JdbcDatabase(sink, spark).connection() as connection:
        connection.execute(
            "CREATE TABLE orders (n SMALLINT PRIMARY KEY, length INT NOT NULL, day DATE, penstock_order VARCHAR(41))"
        )
        connection.commit()
    add(stream_redis, {"n": 1, "word": "one"}, {"n": 70_000, "word": "x"}, {"n": 3}, {"n": 4, "word": "four"})
    add(stream_redis, {"n": 5, "word": "x", "day": "9999-12-31"}, {"n": 4, "word": "again", "day": "2026-11-16"})
    step = Sql(f"SELECT n, length(word) AS length, {DAY}, stream AS _stream, id AS _id FROM input")
    run(pipeline_of(step, sinks=(sink,), source_schema=SCHEMA))
    found = spark.read.format("jdbc").option("url", derby).option("dbtable", "orders").load().collect()
    assert sorted(row[0] for row in found) == [1, 4]
    told = refused(stream_redis)
    assert sorted(told) == [3, 5, 70_000]
    assert "outside the range for the data type SMALLINT" in told[70_000]
    with JdbcDatabase(sink, spark).connection() as connection:
        left = connection.number("SELECT COUNT(*) FROM SYS.SYSTABLES WHERE TABLENAME LIKE 'PENSTOCK_%'")
    assert left == 1  # the numbers of the batches


def test_iceberg_refuses_times_and_partitions_that_python_has_no_values_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.sql(
        "SELECT 'orders' AS stream, concat(n, '-0') AS id, IF(n = 1, double('NaN'), 1D) AS part, "
        "date_add(date'9999-12-31', IF(n = 2, 1, 0)) AS day FROM VALUES (0), (1), (2) AS t(n)"
    )
    sink = Iceberg("shop.orders", catalog=iceberg_catalogue(tmp_path), partition_by=("part",))
    found = list(IcebergWriter(sink, Files(spark)).refusals(rows, Origin("stream", "id")))
    assert {(refusal.entry.id, refusal.column) for refusal in found if refusal.entry} == {
        ("1-0", "part"),
        ("2-0", "day"),
    }


@pytest.mark.parametrize(
    ("text", "may_be_refused"),
    [
        ("java.io.IOException: File name too long: /lake/word=request timed out ...", True),
        ("java.nio.file.InvalidPathException: Nul character not allowed", True),
        ("Job aborted due to stage failure: Lost task 0.3: ExecutorLostFailure (executor 1 exited)", False),
        ("com.amazonaws.services.s3.model.AmazonS3Exception: Slow Down (Status Code: 503; Error Code: x)", False),
    ],
)
def test_a_failure_of_a_server_is_not_taken_for_a_row_that_makes_no_folder(text: str, may_be_refused: bool) -> None:
    from pyspark.errors import PySparkException

    error = PySparkException(text)
    assert FileSink(Parquet("/lake", partition_by=("word",))).is_refusal(error) is may_be_refused


@pytest.mark.parametrize("given", [{}, {"key": ("n",)}], ids=["append", "key"])
def test_delta_without_jars_takes_times_that_python_has_no_values_for(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path, given: dict[str, Any]
) -> None:
    add(stream_redis, {"n": 1}, {"n": 1_700_000_000_000_000})  # microseconds where milliseconds are expected
    steps = Sql("SELECT n, timestamp_millis(n) AS at, date(timestamp_millis(n)) AS day, stream, id FROM input")
    pipeline = pipeline_of(steps, sinks=(Delta(str(tmp_path / "delta"), library="python", **given),))
    run(pipeline)
    add(stream_redis, {"n": 2})
    run(pipeline)
    found = pq.read_table(DeltaTable(tmp_path / "delta").file_uris())
    assert sorted(found["at"].cast("int64").to_pylist()) == [1_000, 2_000, 1_700_000_000_000_000_000]
    assert not dead_letters(stream_redis)


def test_what_does_not_go_through_is_found_among_much_that_does() -> None:
    tried: list[int] = []

    def attempt(some: Any) -> Exception | None:
        tried.append(len(some))
        return ValueError("no") if {7, 500} & set(some) else None

    assert [item for item, _ in bisected(range(1000), attempt)] == [7, 500]
    assert len(tried) < 45
