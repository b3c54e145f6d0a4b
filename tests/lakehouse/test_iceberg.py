"""Iceberg with its own jars: what the jar-less writer promises, and both on one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.lake.iceberg_java import IcebergBranchLost, IcebergJavaTable
from penstock.spark.pipeline import Handler, Iceberg, Parquet, Pipeline, Sql
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import BatchKey, Files
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.spark.pipeline.sinks.iceberg import IcebergSparkWriter, IcebergWriter
from penstock.spark.pipeline.validation import PipelineInvalid
from tests.lakehouse.conftest import iceberg_settings
from tests.spark.driver import Driver
from tests.spark.pipeline.conftest import SHOP, add_orders, dead_letters, iceberg_catalogue, iceberg_rows
from tests.spark.pipeline.test_crashes import crash_after, crash_after_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
Make = Callable[..., Iceberg]


@pytest.fixture
def catalogue(iceberg_place: Path) -> dict[str, str]:
    """The catalogue `lake` of the session, for PyIceberg."""
    return {**iceberg_catalogue(iceberg_place), "name": "lake"}


@pytest.fixture
def sink(catalogue: dict[str, str], tmp_path: Path) -> Make:
    """Declares a sink; its table is another one for each test."""

    def made(library: str = "spark", **given: Any) -> Iceberg:
        return Iceberg(f"shop.{tmp_path.name}", catalogue, spark_catalog="lake", library=library, **given)

    return made


def name_of(sink: Iceberg) -> str:
    return f"lake.{sink.table}"


def rows_of(spark: SparkSession, sink: Iceberg) -> list[int]:
    """Returns what both libraries find in the table."""
    spark.catalog.refreshTable(name_of(sink))
    found = sorted(row["n"] for row in spark.read.format("iceberg").load(name_of(sink)).collect())
    assert iceberg_rows(dict(sink.catalog), sink.table, "n") == found
    return found


def branches(spark: SparkSession, sink: Iceberg) -> list[str]:
    spark.catalog.refreshTable(name_of(sink))
    return sorted(row["name"] for row in spark.sql(f"SELECT name FROM {name_of(sink)}.refs").collect())


def test_jars_are_found_by_themselves(spark: SparkSession, pipeline_of: Declare, sink: Make) -> None:
    pipeline = pipeline_of()

    def kind(chosen: Iceberg) -> type:
        return type(writer_of(chosen, pipeline, spark))

    assert [kind(sink(library)) for library in ("auto", "spark")] == [IcebergSparkWriter] * 2
    assert kind(sink("python")) is IcebergWriter
    assert kind(Iceberg("a.b", {"type": "rest"})) is IcebergWriter  # not said to be one of the session
    assert kind(Iceberg("a.b", {"type": "rest"}, spark_catalog="other")) is IcebergWriter
    unknown = writer_of(Iceberg("a.b", spark_catalog="other"), pipeline, spark)
    (problem,) = unknown.problems(spark.range(1).schema)
    assert problem.startswith("the Spark session has no Iceberg, or no catalogue 'other'")


def test_a_crash_after_any_step_loses_no_row_and_doubles_none(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, sink: Make
) -> None:
    add_orders(stream_redis, 30)
    pipeline = pipeline_of(
        Handler(f"{SHOP}:fickle"),
        Sql("SELECT n, n % 2 AS parity, headers, timestamp FROM input"),
        sinks=(table := sink(partition_by=("parity",)),),
    )
    crash_after_each(run, pipeline, ["begun", "iceberg branched", "iceberg written", "iceberg committed", "done"])
    add_orders(stream_redis, 5, first=30)
    run(pipeline)
    given_up = [json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)]
    assert sorted([*rows_of(spark, table), *given_up]) == list(range(35))
    assert branches(spark, table) == ["main"]
    partitions = spark.sql(f"SELECT partition.parity FROM {name_of(table)}.partitions").collect()
    assert sorted(row["parity"] for row in partitions) == [0, 1]


@pytest.mark.parametrize(("first", "then"), [("spark", "python"), ("python", "spark")])
def test_a_batch_of_one_library_is_known_to_the_other(
    spark: SparkSession,
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: RunOnce,
    sink: Make,
    first: str,
    then: str,
) -> None:
    add_orders(stream_redis, 10)
    # Spark repeats the batch, since it was not told that it is done; the other library finds it in the table.
    with pytest.raises(PipelineFailed, match="Crash: iceberg committed"):
        run(pipeline_of(Sql("SELECT n FROM input"), sinks=(sink(first),)), mark=crash_after("iceberg committed"))
    add_orders(stream_redis, 5, first=10)
    report = run(pipeline_of(Sql("SELECT n FROM input"), sinks=(sink(then),)))
    assert (report.batches, rows_of(spark, sink())) == (2, list(range(15)))
    add_orders(stream_redis, 5, first=15)
    run(pipeline_of(Sql("SELECT n FROM input"), sinks=(sink(first),)))
    assert rows_of(spark, sink()) == list(range(20))
    empty = pipeline_of(Sql("SELECT n FROM input WHERE n < 0"), sinks=(sink("spark"),))
    before = spark.sql(f"SELECT * FROM {name_of(sink())}.history").count()
    add_orders(stream_redis, 1, first=99)
    assert run(empty).batches == 1
    assert spark.sql(f"SELECT * FROM {name_of(sink())}.history").count() == before
    assert branches(spark, sink()) == ["main"]


def test_state_is_kept_when_a_batch_is_there_already(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, sink: Make
) -> None:
    add_orders(stream_redis, 10)
    pipeline = pipeline_of(sinks=(table := sink(),), watermark="1h", dedup=("message_id",))
    crash_after_each(run, pipeline, ["iceberg committed"])
    add_orders(stream_redis, 12)  # the first ten again
    run(pipeline)
    assert rows_of(spark, table) == list(range(12))


@pytest.mark.parametrize("other", ["spark", "python"])
@pytest.mark.parametrize("moment", ["iceberg written", "staged"])
def test_of_two_drivers_with_the_same_batch_the_second_is_refused(
    spark: SparkSession, pipeline_of: Declare, sink: Make, monkeypatch: pytest.MonkeyPatch, other: str, moment: str
) -> None:
    key, table = BatchKey("q", 1), sink()
    session = spark.newSession()
    rows = [each.range(5).withColumnRenamed("id", "n") for each in (spark, session)]
    assert writer_of(table, pipeline_of(), spark).write(rows[0], BatchKey("q", 0), lambda _: None)

    def overtake(step: str) -> None:
        if step == moment:
            faster = IcebergSparkWriter(table, session) if other == "spark" else IcebergWriter(table, Files(session))
            assert faster.write(rows[1], key, lambda _: None)

    staged = IcebergJavaTable._staged

    def overtaken(self: IcebergJavaTable, *given: Any) -> Any:
        change = staged(self, *given)
        if self._spark is spark:
            overtake("staged")
        return change

    slow = IcebergSparkWriter(table, spark)
    with monkeypatch.context() as patch:
        patch.setattr(IcebergJavaTable, "_staged", overtaken)
        assert not slow.write(rows[0], key, overtake)
    assert rows_of(spark, table) == sorted([*range(5), *range(5)])
    assert slow.write(rows[0], BatchKey("q", 2), lambda _: None)
    assert branches(spark, table) == ["main"]


def test_a_branch_that_somebody_removes_ends_the_batch(spark: SparkSession, sink: Make) -> None:
    table = sink()

    def remove(step: str) -> None:
        if step == "iceberg written":
            (branch,) = [name for name in branches(spark, table) if name != "main"]
            spark.sql(f"ALTER TABLE {name_of(table)} DROP BRANCH `{branch}`")

    with pytest.raises(IcebergBranchLost, match="Stop one of them and restart the other"):
        IcebergSparkWriter(table, spark).write(spark.range(3), BatchKey("q", 0), remove)


def test_a_table_that_does_not_fit_is_told(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, sink: Make, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    table = sink()
    columns = "n string, day int, more struct<a: int>"
    spark.sql(f"CREATE TABLE {name_of(table)} ({columns}) USING iceberg PARTITIONED BY (day)")
    query = Sql("SELECT n, named_struct('a', 1) AS more, n AS extra FROM input")
    told = {}
    for library in ("spark", "python"):
        sinks = (sink(library), Parquet(str(tmp_path / "table")))
        with pytest.raises(PipelineInvalid) as caught:
            pipeline_of(query, sinks=sinks).validate(spark)
        told[library] = list(caught.value.problems)
    assert told["spark"] == told["python"]
    assert told["spark"] == [
        f"sink 1 (iceberg): table '{table.table}': column 'n' is long in the rows and string in the table",
        f"sink 1 (iceberg): table '{table.table}' has no column 'extra'; available: n, day, more",
        f"sink 1 (iceberg): table '{table.table}' is partitioned by ['day'], which differs from partition_by",
    ]
    with pytest.raises(PipelineInvalid, match="partition_by: unknown column 'day'; available: n"):
        pipeline_of(Sql("SELECT n FROM input"), sinks=(sink(partition_by=("day",)),)).validate(spark)


def test_columns_that_only_the_table_has_are_null(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, sink: Make
) -> None:
    add_orders(stream_redis, 2)
    table = sink()
    spark.sql(f"CREATE TABLE {name_of(table)} (more string, n bigint) USING iceberg")
    run(pipeline_of(Sql("SELECT n FROM input"), sinks=(table,)))
    assert rows_of(spark, table) == [0, 1]
    found = spark.read.table(name_of(table)).orderBy("n").collect()
    assert [(row["more"], row["n"]) for row in found] == [(None, 0), (None, 1)]


@pytest.mark.parametrize("libraries", [("spark", "spark"), ("spark", "python"), ("python", "spark")])
def test_the_newest_row_of_each_key_stays_whichever_library_merges(
    spark: SparkSession, pipeline_of: Declare, sink: Make, libraries: tuple[str, str]
) -> None:
    def write(number: int, library: str, *rows: tuple[str, str, str]) -> bool:
        frame = spark.createDataFrame(
            [("orders", *row) for row in rows], "stream string, id string, k string, word string"
        )
        writer = writer_of(sink(library, key="k", delete_when="word = ''"), pipeline_of(), spark)
        assert list(writer.problems(frame.schema)) == []
        return writer.write(frame, BatchKey("q", number), lambda _: None)

    first, then = libraries
    assert write(0, first, ("10-0", "a", "new"), ("9-5", "a", "old"), ("5-9", "b", "old"), ("1-0", "c", "one"))
    assert not write(0, first, ("11-0", "a", "again"))
    assert write(1, then, ("9-9", "a", "stale"), ("6-0", "b", "newer"), ("2-0", "c", ""), ("1-0", "d", ""))
    assert not write(1, then, ("12-0", "a", "again"))
    spark.catalog.refreshTable(name_of(sink()))
    found = spark.read.table(name_of(sink())).select("k", "word").collect()
    assert sorted(map(tuple, found)) == [("a", "new"), ("b", "newer")]


def test_transforms_and_new_columns_are_those_of_iceberg(spark: SparkSession, pipeline_of: Declare, sink: Make) -> None:
    by = ("day(at)", "bucket(4, n)", "truncate(2, word)")
    rows = spark.sql("SELECT 1L AS n, timestamp'2026-11-15 23:30:00' AS at, 'apple' AS word")
    wider = rows.selectExpr("n + 1 AS n", "at", "word", "2 AS more")
    for number, (library, frame) in enumerate((("spark", rows), ("spark", wider))):
        writer = writer_of(sink(library, partition_by=by, evolve=True), pipeline_of(), spark)
        assert list(writer.problems(frame.schema)) == []
        assert writer.write(frame, BatchKey("q", number), lambda _: None)
    assert list(writer_of(sink(partition_by=by), pipeline_of(), spark).problems(wider.schema)) == []
    assert rows_of(spark, sink()) == [1, 2]
    found = spark.read.table(name_of(sink())).orderBy("n").collect()
    assert [row["more"] for row in found] == [None, 2]


KILLED = """
import json, os, signal, sys
from penstock.spark import session
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.running import Run

file, conf, moment = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

def mark(step):
    if step == moment:
        print("killed", flush=True)
        os.killpg(0, signal.SIGKILL)

spark = session("killed", "local[2]", short=True, conf=conf)
Run(Pipeline.from_file(file), spark, once=True, mark=mark).run()
"""

FILE = """
name = "orders"
checkpoint = "{place}/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "n bigint"
[[step]]
sql = "SELECT n, timestamp FROM input"
[[sink]]
kind = "iceberg"
table = "{table}"
spark_catalog = "lake"
[[sink]]
kind = "parquet"
path = "{place}/table"
"""


@pytest.mark.parametrize("moment", ["iceberg written", "iceberg committed"])
def test_a_killed_driver_leaves_each_row_once(
    spark: SparkSession,
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    start_driver: Callable[..., Driver],
    run: RunOnce,
    table: Callable[..., list[Any]],
    sink: Make,
    iceberg_place: Path,
    tmp_path: Path,
    moment: str,
) -> None:
    add_orders(stream_redis, 50)
    file = tmp_path / "orders.toml"
    file.write_text(FILE.format(place=tmp_path, url=stream_server.url, table=sink().table))
    driver = start_driver(KILLED, str(file), json.dumps(iceberg_settings(iceberg_place)), moment)
    driver.wait_for_line("killed")
    driver.kill()
    assert table() == []
    add_orders(stream_redis, 5, first=50)
    run(Pipeline.from_file(file))
    assert rows_of(spark, sink()) == table() == list(range(55))
    assert branches(spark, sink()) == ["main"]
