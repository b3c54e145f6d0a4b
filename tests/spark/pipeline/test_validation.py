"""What cannot work is found before anything runs: one line each, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable, Schema
from psycopg import conninfo

from penstock.spark.pipeline import (
    Delta,
    Function,
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
from penstock.spark.pipeline.sinks.jdbc_connection import JdbcDatabase
from penstock.spark.pipeline.validation import PipelineInvalid
from tests.spark.pipeline.conftest import SHOP, add_orders, iceberg_catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]


@pytest.fixture
def problems(spark: SparkSession, stream_redis: redis.Redis, tmp_path: Path) -> Callable[[Pipeline], tuple[str, ...]]:
    add_orders(stream_redis, 1)

    def found(pipeline: Pipeline) -> tuple[str, ...]:
        before = {*tmp_path.rglob("*")}, stream_redis.keys()
        with pytest.raises(PipelineInvalid) as caught:
            pipeline.validate(spark)
        assert ({*tmp_path.rglob("*")}, stream_redis.keys()) == before
        assert not any("\n" in problem for problem in caught.value.problems)
        return caught.value.problems

    return found


def test_a_good_pipeline_is_found_good(spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare) -> None:
    add_orders(stream_redis, 1)
    pipeline_of(Handler(f"{SHOP}:score"), Sql("SELECT n FROM input"), Function(f"{SHOP}:doubled")).validate(spark)
    assert not spark.catalog.tableExists("input")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([Sql("SELECT m FROM input")], "step 1 (sql): [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ([Sql("SELECT n FROM input"), Sql("SELCT n FROM input")], "step 2 (sql): [PARSE_SYNTAX_ERROR]"),
        ([Sql("SELECT n FROM elsewhere")], "step 1 (sql): [TABLE_OR_VIEW_NOT_FOUND]"),
        ([Sql("SELECT 1 AS n")], "step 1 (sql): step 1 does not read its input"),
        ([Function(f"{SHOP}:none")], f"step 1 (python): python='{SHOP}:none' cannot be imported here"),
        ([Function(f"{SHOP}:broken")], "step 1 (python): KeyError: \"whatever the user's code raises\""),
        ([Function(f"{SHOP}:leaving")], "step 1 (python): SystemExit: 3"),
        ([Function(f"{SHOP}:nothing")], f"step 1 (python): python='{SHOP}:nothing' must return a DataFrame, not NoneType"),
        ([Handler("no.such.module:f")], "step 1 (handler): handler='no.such.module:f' cannot be imported here"),
        ([Sql("SELECT n FROM input"), Handler(f"{SHOP}:score")], "step 2 (handler): handler="),
        ([Handler(f"{SHOP}:score", output="n double")], "step 1 (handler): output: column 'n' already exists"),
        ([Sql("SELECT n, count(*) AS c FROM input GROUP BY n")], "steps: [STREAMING_OUTPUT_MODE"),
        ([Sql("SELECT n, null AS x FROM input")], "column 'x' is void, which Parquet cannot store"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_work_is_told(
    problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, steps: list[Any], told: str,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (problem, *_) = problems(pipeline_of(*steps))
    assert told in problem
    assert "Traceback" not in capfd.readouterr().err  # PySpark would print pages of Java's words


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"source_url": "redis://127.0.0.1:1"}, "source: "),
        ({"source_streams": ("nowhere",)}, "source: stream 'nowhere' does not exist"),
        ({"source_valid": ("m > 0",)}, "source: [UNRESOLVED_COLUMN"),
        ({"source_schema": "id bigint"}, "source: 'id' is both a field of the payload and a column of the entry"),
        ({"watermark": "1m", "dedup": ("m",)}, "source: dedup: unknown column 'm'"),
        ({"watermark": "1m", "dedup": ("headers",)}, "source: dedup: column 'headers' is a map"),
        ({"watermark": "1m", "watermark_column": "n"}, "source: watermark_column 'n' is bigint, not a timestamp"),
        (
            {"checkpoint": "/dev/null/here"},
            "checkpoint: cannot write to /dev/null/here: /dev/null is not a directory",
        ),
    ],
)
def test_a_source_that_cannot_work_is_told(
    problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, given: dict[str, Any], told: str
) -> None:
    assert told in problems(pipeline_of(**given))[0]


def test_every_sink_that_cannot_work_is_told(
    problems: Callable[..., tuple[str, ...]],
    pipeline_of: Declare,
    postgres: PostgresServer,
    tmp_path: Path,
    stream_redis: redis.Redis,
) -> None:
    (tmp_path / "file").write_text("in the way")
    stream_redis.set("text", "no stream")
    postgres.execute("CREATE TABLE narrow (m bigint)")
    sinks = (
        Parquet(str(tmp_path / "file" / "table"), partition_by=("day",)),
        Delta(str(tmp_path / "file" / "delta")),
        RedisStreams("text"),
        RedisStreams("copy", url="redis://127.0.0.1:1", name="away"),
        Postgres("postgresql://nobody@127.0.0.1:1/x", "t", name="gone"),
        Postgres(postgres.dsn, "missing", name="missing"),
        Postgres(postgres.dsn, "narrow", key=("k",), name="narrow"),
        Parquet(str(tmp_path / "table"), partition_by=("raw", "raw"), name="folders"),
        Parquet(str(tmp_path / ("a" * 300)), name="long"),
        Delta("/proc/penstock", name="superuser"),
    )
    found = problems(pipeline_of(Sql("SELECT n, data AS raw FROM input"), sinks=sinks))
    starts = [
        "sink 1 (parquet): partition_by: unknown column 'day'",
        f"sink 1 (parquet): cannot write to {tmp_path}/file/table",
        f"sink 2 (delta): cannot write to {tmp_path}/file/delta",
        "sink 3 (redis_streams): key 'text' in Redis is a string",
        "sink 4 (away): ",
        "sink 5 (gone): cannot use PostgreSQL",
        "sink 6 (missing): table 'missing' does not exist",
        "sink 7 (narrow): key: unknown column 'k'",
        "sink 7 (narrow): table 'narrow' has no column 'n'",
        "sink 7 (narrow): table 'narrow' has no column 'raw'",
        "sink 8 (folders): partition_by: folders cannot be named after 'raw', which is binary",
        "sink 8 (folders): partition_by names 'raw' twice",
        f"sink 9 (long): cannot write to {tmp_path}/{'a' * 300}: File name too long",
        "sink 10 (superuser): cannot write to /proc/penstock: ",
    ]
    assert len(found) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(found, starts, strict=True)), found


def test_every_catalogue_database_and_back_end_that_cannot_work_is_told(
    problems: Callable[..., tuple[str, ...]],
    pipeline_of: Declare,
    derby: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    catalogue = iceberg_catalogue(tmp_path)
    sinks = (
        Delta(str(tmp_path / "delta"), library="spark", name="no jar"),
        Iceberg("shop.t", {**catalogue, "warehouse": f"file://{tmp_path}/file/x"}, partition_by=("day",)),
        Iceberg("shop.t", {"type": "rest", "uri": "http://127.0.0.1:1"}, name="unreachable"),
        Iceberg("shop.t", {"type": "nosuch"}, name="unknown"),
        Iceberg("shop.t", catalogue, spark_catalog="lake", name="well"),  # without jars, since there are none
        Jdbc("jdbc:nosuch://127.0.0.1/x", "t", name="no driver"),
        Jdbc(derby, "t", options={"driver": "com.example.NoDriver"}, name="no class"),
        Jdbc(derby, "t", key=("k",)),
        Jdbc(derby, "sysibm.sysdummy1", name="narrow"),
        Jdbc(derby, "t", create=True, name="well too"),
        Results(id="k", result_kind="order", columns=("m",), options={"root": str(tmp_path / "file" / "results")}),
        Results(id="at", result_kind="order", finished_at="n", options={"rot": "x"}, name="options"),
        Results(id="n", result_kind="order", backend="nosuch", name="plug-in"),
        Results(
            id="n", result_kind="order", backend="postgres", options={"dsn": "postgresql://x@127.0.0.1:1/x"}, name="pg"
        ),
        Results(id="n", result_kind="order", options={"root": str(tmp_path / "results")}, name="well as well"),
        Iceberg("shop.t", catalogue, spark_catalog="lake", library="spark", name="no iceberg"),
    )
    found = problems(pipeline_of(Sql("SELECT n, timestamp AS at FROM input"), sinks=sinks))
    starts = [
        "sink 1 (no jar): library = 'spark' needs Delta Lake in the Spark session",
        "sink 2 (iceberg): partition_by: unknown column 'day'",
        f"sink 2 (iceberg): cannot write to file://{tmp_path}/file/x",
        "sink 3 (unreachable): cannot use the catalogue: ConnectionError",
        "sink 4 (unknown): cannot use the catalogue: ValueError: 'nosuch'",
        "sink 6 (no driver): cannot use the database: the Spark session has no JDBC driver for this url",
        "sink 7 (no class): cannot use the database: the Spark session has no JDBC driver for this url",
        "sink 8 (jdbc): key: unknown column 'k'",
        "sink 8 (jdbc): table 't' does not exist",
        "sink 9 (narrow): table 'sysibm.sysdummy1' has no column 'n'",
        "sink 9 (narrow): table 'sysibm.sysdummy1' has no column 'at'",
        "sink 11 (results): id: unknown column 'k'",
        "sink 11 (results): columns: unknown column 'm'",
        f"sink 11 (results): cannot write to {tmp_path}/file/results",
        "sink 12 (options): id: column 'at' is timestamp",
        "sink 12 (options): finished_at: column 'n' is not a timestamp",
        "sink 12 (options): cannot use the result back-end: ",
        "sink 13 (plug-in): cannot use the result back-end: unknown result back-end 'nosuch'",
        "sink 14 (pg): cannot use the result back-end: connection failed",
        "sink 16 (no iceberg): the Spark session has no Iceberg, or no catalogue 'lake'",
    ]
    assert [problem[: len(start)] for problem, start in zip(found, starts, strict=False)] == starts
    assert len(found) == len(starts)


def test_rows_that_no_file_can_hold_are_told_once(
    problems: Callable[..., tuple[str, ...]], pipeline_of: Declare
) -> None:
    sinks = (Parquet("/nowhere/table"), Delta("/nowhere/delta"))
    query = Sql("SELECT n, stream AS N, array() AS e, struct() AS s, timestamp - timestamp AS i FROM input")
    assert problems(pipeline_of(query, sinks=sinks)) == (
        "the rows for the sinks: two columns are named 'N' (case is ignored): rename one",
        "the rows for the sinks: column 'e' is array<void>, which Parquet cannot store: cast it",
        "the rows for the sinks: column 's' is struct<>, which is empty, and Parquet cannot store it: drop it",
        "the rows for the sinks: column 'i' is interval day to second, which Parquet cannot store: cast it",
    )


def test_a_place_that_cannot_be_reached_is_told(
    problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, tmp_path: Path
) -> None:
    sinks = (
        Parquet("s4://bucket/table"),
        Delta("hdfs://nowhere.invalid:9000/table"),
        Parquet("/tmp/a b#?%", name="well"),
    )
    found = problems(pipeline_of(sinks=sinks, checkpoint="s4://bucket/checkpoint"))
    starts = [
        "checkpoint: cannot reach s4://bucket/checkpoint: org.apache.hadoop.fs.UnsupportedFileSystemException: ",
        "sink 1 (parquet): cannot reach s4://bucket/table: org.apache.hadoop.fs.UnsupportedFileSystemException: ",
        "sink 2 (delta): cannot reach hdfs://nowhere.invalid:9000/table: ",
    ]
    assert len(found) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(found, starts, strict=True)), found


def test_a_delta_table_with_other_columns_is_told_in_plain_words(
    problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, tmp_path: Path
) -> None:
    path = str(tmp_path / "delta")
    DeltaTable.create(path, schema=Schema.from_arrow(pa.schema([("n", pa.string())])))
    (problem,) = problems(pipeline_of(Sql("SELECT n FROM input"), sinks=Delta(path)))
    assert (
        problem
        == f"sink 1 (delta): the table at {path} has different columns: 'n' is long in the rows and string in the table"
    )


def test_a_table_of_postgres_that_does_not_fit_is_told(
    problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, postgres: PostgresServer
) -> None:
    postgres.execute(
        "CREATE TABLE t (n date, kind integer, tags text[], raw jsonb, at date, must bigint NOT NULL, "
        "made bigint NOT NULL DEFAULT 1, own bigint GENERATED ALWAYS AS IDENTITY);"
        "CREATE TABLE k (n bigint, kind uuid, tags jsonb, raw bytea, at timestamp, UNIQUE (kind, n) INCLUDE (at));"
        "CREATE UNIQUE INDEX ON t (made) INCLUDE (n);"
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON k TO reader"
    )
    steps = Sql("SELECT n, stream AS kind, array(stream) AS tags, data AS raw, timestamp AS at FROM input")
    sinks = (
        Postgres(postgres.dsn, "t", key=("n",), name="t"),
        Postgres(postgres.dsn, "k", key=("n", "kind"), name="well"),
        Postgres(postgres.dsn, "shop.k", create=True, name="schema"),
        Postgres(conninfo.make_conninfo(postgres.dsn, user="reader", password=""), "k", name="reader"),
    )
    assert problems(pipeline_of(steps, sinks=sinks)) == (
        "sink 1 (t): table 't': column 'n' is bigint in the rows and date in the table: cast it in a step",
        "sink 1 (t): table 't': column 'kind' is string in the rows and integer in the table: cast it in a step",
        "sink 1 (t): table 't': column 'tags' is array<string> in the rows and text[] in the table: cast it in a step",
        "sink 1 (t): table 't': column 'raw' is binary in the rows and jsonb in the table: cast it in a step",
        "sink 1 (t): table 't': column 'must' must not be null and has no default, but the rows do not have it",
        "sink 1 (t): key: table 't' has no unique index on (n): CREATE UNIQUE INDEX ON t (n)",
        "sink 3 (schema): schema 'shop' does not exist: create it",
        "sink 4 (reader): the user may not create tables in schema 'public', where batches are staged and recorded: GRANT CREATE",
        'sink 4 (reader): the user may not write to table "k": GRANT INSERT',
    )


def test_a_table_behind_jdbc_that_does_not_fit_is_told(
    spark: SparkSession, problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, derby: str
) -> None:
    with JdbcDatabase(Jdbc(derby, "t"), spark).connection() as connection:
        connection.execute(
            "CREATE TABLE t (n DATE, kind DECIMAL(9,2), tags INT, raw VARCHAR(9), moment BOOLEAN, must BIGINT NOT NULL, "
            "made BIGINT NOT NULL DEFAULT 1, own BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY)"
        )
        connection.execute(
            "CREATE TABLE k (n BIGINT NOT NULL, kind CLOB, tags CLOB, raw BLOB, moment TIMESTAMP, more INT)"
        )
        connection.commit()
    steps = Sql("SELECT n, stream AS kind, array(stream) AS tags, data AS raw, timestamp AS moment FROM input")
    assert problems(pipeline_of(steps, sinks=(Jdbc(derby, "t"), Jdbc(derby, "k", name="well")))) == (
        "sink 1 (jdbc): table 't': column 'n' is bigint in the rows and DATE in the table: cast it in a step",
        "sink 1 (jdbc): table 't': column 'kind' is string in the rows and DECIMAL(9,2) in the table: cast it in a step",
        "sink 1 (jdbc): table 't': column 'tags' is array<string> in the rows and INTEGER in the table: cast it in a step",
        "sink 1 (jdbc): table 't': column 'raw' is binary in the rows and VARCHAR(9) in the table: cast it in a step",
        "sink 1 (jdbc): table 't': column 'moment' is timestamp in the rows and BOOLEAN in the table: cast it in a step",
        "sink 1 (jdbc): table 't': column 'MUST' must not be null and has no default, but the rows do not have it",
    )


def test_a_parquet_table_with_other_columns_is_told(
    spark: SparkSession, problems: Callable[..., tuple[str, ...]], pipeline_of: Declare, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    there = spark.range(1).selectExpr("id AS n", "array(named_struct('a', id)) AS s", "'x' AS day")
    there.write.partitionBy("day").parquet(f"{path}/batch=1")
    sink = Parquet(str(path), partition_by="day")
    fitting = "array(named_struct('a', n)) AS s, to_date(timestamp) AS day"
    pipeline_of(Sql(f"SELECT n, {fitting} FROM input"), sinks=sink).validate(spark)
    other = Sql(f"SELECT string(n) AS n, 1 AS more, {fitting} FROM input")
    start = f"sink 1 (parquet): the table at {path} has different columns: "
    assert problems(pipeline_of(other, sinks=sink)) == (
        f"{start}'n' is string in the rows and bigint in the table: write to another path",
        f"{start}'more' is int in the rows and missing in the table: write to another path",
    )
