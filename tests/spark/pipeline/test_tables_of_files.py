"""Tables that grow columns, and tables that are partitioned by what is made of a column."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.lake.delta import DeltaLog, statistics
from penstock.spark.lake.files import Location, no_fail_point
from penstock.spark.lake.partitions import Partition, Partitions
from penstock.spark.pipeline import Delta, Iceberg, Parquet, Pipeline, Sql
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.spark.pipeline.validation import PipelineInvalid
from tests.spark.driver import Driver
from tests.spark.pipeline.conftest import add_orders, iceberg_catalogue
from tests.spark.pipeline.test_crashes import crash_after
from tests.spark.pipeline.test_upserts import KILLED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
ROWS = """
SELECT n, at, name FROM VALUES
    (1, timestamp'2026-11-15 23:30:00 UTC', 'apple'), (2, timestamp'2026-11-16 00:30:00 UTC', 'apricot'),
    (-3, timestamp'1969-12-31 23:59:59 UTC', 'b'), (4, CAST(NULL AS timestamp), CAST(NULL AS string))
AS t(n, at, name)
"""


def iceberg(place: Path, **given: Any) -> Iceberg:
    return Iceberg("shop.table", iceberg_catalogue(place), **given)


def loaded(place: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("penstock", **iceberg_catalogue(place)).load_table("shop.table")


def rows_of(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=str)


@pytest.mark.slow
def test_a_new_column_is_added_if_that_is_allowed_also_by_a_driver_that_dies(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path
) -> None:
    def declared(query: str, *, evolve: bool) -> Pipeline:
        sinks = (
            Parquet(str(tmp_path / "parquet"), evolve=evolve),
            Delta(str(tmp_path / "delta"), evolve=evolve),
            iceberg(tmp_path, evolve=evolve),
            Delta(str(tmp_path / "latest"), key=("n",), order_by="n", evolve=evolve, name="latest"),
        )
        return pipeline_of(Sql(query), sinks=sinks)

    wider = "SELECT n, concat('o-', n) AS word, named_struct('a', n) AS more FROM input"
    add_orders(stream_redis, 2)
    run(declared("SELECT n FROM input", evolve=False))
    with pytest.raises(PipelineInvalid) as caught:
        run(declared(wider, evolve=False))
    assert len(caught.value.problems) == 8
    add_orders(stream_redis, 2, first=2)
    for step in ("parquet shown", "delta written", "iceberg written"):
        with pytest.raises(PipelineFailed):
            run(declared(wider, evolve=True), mark=crash_after(step))
    run(declared(wider, evolve=True))
    add_orders(stream_redis, 1, first=4)
    run(declared("SELECT n FROM input", evolve=True))
    expected = [(0, None), (1, None), (2, "o-2"), (3, "o-3"), (4, None)]
    for place in ("delta", "latest"):
        assert rows_of(DeltaTable(str(tmp_path / place)).to_pyarrow_table(), "n", "word") == expected
    assert rows_of(loaded(tmp_path).scan().to_arrow(), "n", "word") == expected
    found = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "parquet")).toArrow()
    assert rows_of(found, "n", "word") == expected
    assert {3: {"a": 3}}.items() <= dict(rows_of(found, "n", "more")).items()


def test_an_append_goes_on_when_somebody_adds_a_column_meanwhile(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "delta")
    writer = writer_of(Delta(path), pipeline_of(), spark)
    narrow = spark.range(3)
    assert writer.write(narrow, BatchKey("q", 0), no_fail_point)

    def widened(*given: Any, **named: Any) -> str:  # called just before the commit
        log = DeltaLog.open(Location.of(path))
        assert log is not None
        log.add_columns(pa.schema([("id", pa.int64()), ("word", pa.string())]))
        return statistics(*given, **named)

    monkeypatch.setattr("penstock.spark.pipeline.sinks.delta.statistics", widened)
    assert writer.write(narrow, BatchKey("q", 1), no_fail_point)
    found = DeltaTable(path).to_pyarrow_table()
    assert rows_of(found, "id", "word") == [(n, None) for n in (0, 0, 1, 1, 2, 2)]


EVOLVING = """
name = "evolving"
checkpoint = "{place}/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "n bigint NOT NULL"
[[step]]
sql = "SELECT n FROM input"
[[sink]]
kind = "delta"
path = "{place}/delta"
evolve = true
[[sink]]
kind = "iceberg"
table = "shop.table"
catalog = {catalogue}
evolve = true
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_when_it_has_added_columns_leaves_no_row_out(
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    start_driver: Callable[..., Driver],
    run: RunOnce,
    tmp_path: Path,
) -> None:
    catalogue = ", ".join(f'{name} = "{value}"' for name, value in iceberg_catalogue(tmp_path).items())
    file = tmp_path / "evolving.toml"
    file.write_text(EVOLVING.format(place=tmp_path, url=stream_server.url, catalogue=f"{{ {catalogue} }}"))
    add_orders(stream_redis, 2)
    run(Pipeline.from_file(file))
    file.write_text(file.read_text().replace("SELECT n FROM", "SELECT n, concat('o-', n) AS word FROM"))
    add_orders(stream_redis, 2, first=2)
    for moment in ("delta prepared", "iceberg prepared"):
        driver = start_driver(KILLED, str(file), moment, "1")
        driver.wait_for_line("killed")
        driver.kill()
    before = [(0, None), (1, None)]
    assert rows_of(loaded(tmp_path).scan().to_arrow(), "n", "word") == before  # it has the column, and no row more
    run(Pipeline.from_file(file))
    expected = [*before, (2, "o-2"), (3, "o-3")]
    assert rows_of(DeltaTable(str(tmp_path / "delta")).to_pyarrow_table(), "n", "word") == expected
    assert rows_of(loaded(tmp_path).scan().to_arrow(), "n", "word") == expected


def test_parquet_files_on_a_disk_survive_a_crash_of_the_machine(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "new" / "table", dict[int, str]()

    def noted(place: Path) -> None:
        when = "after" if [*path.glob("batch=*")] else "before"
        synced.setdefault(place.stat().st_ino, when)
        if place in (path, path.parent):
            synced[place.stat().st_ino] = when

    monkeypatch.setattr("penstock.spark.lake.files.sync", noted)
    writer = writer_of(Parquet(str(path), partition_by=("n",)), pipeline_of(), spark)
    assert writer.write(spark.range(4).selectExpr("id", "id % 2 AS n"), BatchKey("q", 0), no_fail_point)
    (batch,) = path.glob("batch=*")
    assert {synced.get(each.stat().st_ino) for each in (batch, *batch.rglob("*"))} == {"before"}
    assert (synced[path.stat().st_ino], synced[path.parent.stat().st_ino]) == ("after", "before")
    synced.clear()  # as if another driver had renamed it, and was killed
    assert not writer.write(spark.range(4).selectExpr("id", "id % 2 AS n"), BatchKey("q", 0), no_fail_point)
    assert synced[path.stat().st_ino] == "after"


@pytest.mark.rotates
def test_delta_and_parquet_get_a_column_for_each_transform_in_utc_whatever_the_session_says(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path
) -> None:
    by = ("day(at)", "hour(at)", "truncate(2, name)", "bucket(4, n)", "truncate(10, n)")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for sink in (Delta(str(tmp_path / "delta"), partition_by=by), Parquet(str(tmp_path / "parquet"), by)):
            writer = writer_of(sink, pipeline_of(), spark)
            rows = spark.sql(ROWS)
            assert list(writer.problems(rows.schema)) == []
            assert writer.write(rows, BatchKey("q", 0), no_fail_point)
            assert list(writer.problems(rows.schema)) == []
            assert writer.write(rows.where("n = 1"), BatchKey("q", 1), no_fail_point)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    names = ("at_day", "at_hour", "name_truncate_2", "n_truncate_10")
    expected = {
        1: (date(2026, 11, 15), "2026-11-15-23", "ap", 0),
        2: (date(2026, 11, 16), "2026-11-16-00", "ap", 0),
        -3: (date(1969, 12, 31), "1969-12-31-23", "b", -10),
        4: (None, None, None, 0),
    }
    delta = DeltaTable(str(tmp_path / "delta"))
    for table in (delta.to_pyarrow_table(), spark.read.parquet(str(tmp_path / "parquet")).toArrow()):
        found = [(row[0], row[1:]) for row in rows_of(table, "n", *names)]
        assert sorted(found, key=str) == sorted([*expected.items(), (1, expected[1])], key=str)
        assert all(0 <= bucket < 4 for bucket in table["n_bucket_4"].to_pylist())
    assert list(delta.metadata().partition_columns) == [
        "at_day",
        "at_hour",
        "name_truncate_2",
        "n_bucket_4",
        "n_truncate_10",
    ]


@pytest.mark.rotates
def test_iceberg_knows_the_transforms_itself(spark: SparkSession, pipeline_of: Declare, tmp_path: Path) -> None:
    sink = iceberg(tmp_path, partition_by=("day(at)", "truncate(2, name)"))
    writer = writer_of(sink, pipeline_of(), spark)
    rows = spark.sql(ROWS)
    assert writer.write(rows, BatchKey("q", 0), no_fail_point)
    assert list(writer.problems(rows.schema)) == []
    table = loaded(tmp_path)
    assert [str(field.transform) for field in table.spec().fields] == ["day", "truncate[2]"]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [-3, 1, 2, 4]
    first = table.scan(row_filter=f"at < '{datetime(2026, 11, 16, tzinfo=UTC).isoformat()}'")
    assert sorted(first.to_arrow()["n"].to_pylist()) == [-3, 1]
    assert len(list(first.plan_files())) == 2
    (problem,) = writer_of(iceberg(tmp_path, partition_by=("hour(at)",)), pipeline_of(), spark).problems(rows.schema)
    assert (
        problem
        == "table 'shop.table' is partitioned by ['day(at)', 'truncate(2, name)'], which differs from partition_by"
    )
    buckets = Iceberg("shop.other", iceberg_catalogue(tmp_path), partition_by=("bucket(4, n)",))
    (problem,) = writer_of(buckets, pipeline_of(), spark).problems(rows.schema)
    assert problem == "partition_by: PyIceberg cannot add files to buckets: use Iceberg's jars (library = 'spark')"


def test_files_of_delta_carry_statistics(spark: SparkSession, pipeline_of: Declare, tmp_path: Path) -> None:
    path = str(tmp_path / "delta")
    assert writer_of(Delta(path), pipeline_of(), spark).write(
        spark.sql(ROWS).repartition(1), BatchKey("q", 0), no_fail_point
    )
    (log,) = (tmp_path / "delta" / "_delta_log").glob("*1.json")
    (add,) = [json.loads(line)["add"] for line in log.read_text().splitlines() if '"add"' in line]
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 4
    assert (stats["minValues"]["n"], stats["maxValues"]["n"]) == (-3, 4)
    assert stats["nullCount"] == {"n": 0, "at": 1, "name": 1}


@pytest.mark.parametrize(
    ("text", "partition", "name"),
    [
        ("day", Partition("day"), "day"),
        ("day(at)", Partition("at", "day"), "at_day"),
        ("bucket(16, a b)", Partition("a b", "bucket", 16), "a b_bucket_16"),
        ("truncate( 4 ,name )", Partition("name", "truncate", 4), "name_truncate_4"),
    ],
)
def test_partitions_are_read_and_said_again(text: str, partition: Partition, name: str) -> None:
    found = Partition.of(text)
    assert (found, found.name, Partition.of(str(found))) == (partition, name, partition)


@pytest.mark.parametrize("text", ["month(at)", "day(4, at)", "bucket(at)", "bucket(0, at)", "truncate(x, at)"])
def test_no_other_transform_is_known(text: str) -> None:
    with pytest.raises(ConfigurationError, match="partition_by: "):
        Partitions.of((text,))
    with pytest.raises(ConfigurationError, match="partition_by: "):
        Parquet("/t", partition_by=(text,))
