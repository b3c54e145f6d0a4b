"""Two sinks of a pipeline write to one table: each of their batches is in it once."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable, Schema

from penstock.errors import ConfigurationError
from penstock.spark.lake.files import no_fail_point
from penstock.spark.pipeline import Delta, Iceberg, Jdbc, Parquet, Pipeline, Postgres, RedisStreams
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.sinks.delta import _types
from tests.spark.pipeline.conftest import iceberg_catalogue, iceberg_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Declare = Callable[..., Pipeline]
KEY = BatchKey("0123456789abcdef", 3)


class Shared:
    """One table in one of several stores."""

    def __init__(self, request: pytest.FixtureRequest, place: Path) -> None:
        self.store, self._place = request.param, place
        self._get: Callable[[str], Any] = request.getfixturevalue

    def sink(self, name: str, **given: Any) -> Any:
        if self.store == "delta":
            return Delta(str(self._place / "delta"), name=name, **given)
        if self.store == "iceberg":
            return Iceberg("shop.shared", iceberg_catalogue(self._place), name=name, **given)
        if self.store == "postgres":
            return Postgres(self._get("postgres").dsn, "shared", create=True, name=name, **given)
        if self.store == "jdbc":
            return Jdbc(self._get("derby"), "shared", create=True, name=name, **given)
        return RedisStreams("shared", name=name, options={"payload": "json"})

    def rows(self) -> list[int]:
        if self.store == "delta":
            return sorted(DeltaTable(str(self._place / "delta")).to_pyarrow_table()["id"].to_pylist())
        if self.store == "iceberg":
            return iceberg_rows(iceberg_catalogue(self._place), "shop.shared", "id")
        if self.store == "postgres":
            return [n for (n,) in self._get("postgres").execute("SELECT id FROM shared ORDER BY id")]
        if self.store == "jdbc":
            read = self._get("spark").read.format("jdbc").option("url", self._get("derby"))
            return sorted(row[0] for row in read.option("dbtable", "shared").load().select("id").collect())
        found: redis.Redis = self._get("stream_redis")
        return sorted(json.loads(fields[b"data"])["id"] for _, fields in found.xrange("shared"))


@pytest.fixture(params=["delta", *(pytest.param(store, marks=pytest.mark.rotates) for store in ("iceberg", "jdbc"))])
def keyed(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    return Shared(request, tmp_path)


@pytest.fixture(
    params=[
        "delta",
        "iceberg",
        *(pytest.param(store, marks=pytest.mark.rotates) for store in ("postgres", "jdbc", "redis")),
    ]
)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    return Shared(request, tmp_path)


def test_a_batch_of_one_sink_leaves_that_of_another_in_the_table(
    spark: SparkSession, pipeline_of: Declare, shared: Shared
) -> None:
    small, large = (writer_of(shared.sink(name), pipeline_of(), spark) for name in ("small", "large"))
    assert small.write(spark.range(3), KEY, no_fail_point)
    assert large.write(spark.range(3, 6), KEY, no_fail_point)
    assert shared.rows() == [0, 1, 2, 3, 4, 5]
    # The batch is repeated, after a crash.
    small.write(spark.range(3), KEY, no_fail_point)
    large.write(spark.range(3, 6), KEY, no_fail_point)
    assert shared.rows() == [0, 1, 2, 3, 4, 5]


def test_two_sinks_with_a_key_replace_the_rows_of_each_other(
    spark: SparkSession, pipeline_of: Declare, keyed: Shared
) -> None:
    one, other = (
        writer_of(keyed.sink(name, key=("id",), order_by="version"), pipeline_of(), spark) for name in ("one", "other")
    )
    rows = "id bigint, version bigint"
    assert one.write(spark.createDataFrame([(1, 5), (2, 1)], rows), KEY, no_fail_point)
    assert other.write(spark.createDataFrame([(1, 4), (2, 2), (3, 1)], rows), KEY, no_fail_point)
    assert keyed.rows() == [1, 2, 3]
    assert not one.write(spark.createDataFrame([(1, 5), (2, 1)], rows), KEY, no_fail_point)


def test_a_delta_table_takes_no_file_with_other_columns(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path
) -> None:
    """The first batch of one sink creates the table, after the other sink was checked without it."""
    path = str(tmp_path / "delta")
    first, second = (writer_of(Delta(path, name=name), pipeline_of(), spark) for name in ("first", "second"))
    assert first.write(spark.range(3), KEY, no_fail_point)
    with pytest.raises(ConfigurationError, match="'id' is string in the rows and long in the table"):
        second.write(spark.range(3).selectExpr("string(id) AS id"), KEY, no_fail_point)
    with pytest.raises(ConfigurationError, match="'more' is long in the rows and missing in the table"):
        second.write(spark.range(3).selectExpr("id", "id AS more"), KEY, no_fail_point)
    assert DeltaTable(path).to_pyarrow_table()["id"].to_pylist() == [0, 1, 2]
    # A batch that is already in the table is not compared with it.
    assert not first.write(spark.range(3).selectExpr("string(id) AS id"), KEY, no_fail_point)


def test_a_delta_table_takes_staged_rows_although_spark_forgets_what_cannot_be_null_in_them(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path
) -> None:
    columns = "split('a b', ' ') AS words", "named_struct('n', id) AS more", "map('n', id) AS numbers"
    direct, staged = spark.range(2).selectExpr("id", *columns), str(tmp_path / "staged")
    direct.write.parquet(staged)
    writer = writer_of(Delta(str(tmp_path / "delta")), pipeline_of(), spark)
    assert writer.write(direct, KEY, no_fail_point)
    assert writer.write(spark.read.parquet(staged), replace(KEY, number=KEY.number + 1), no_fail_point)
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table()["words"].to_pylist() == [["a", "b"]] * 4
    assert not list(writer.problems(direct.schema))


@pytest.mark.parametrize(
    "of",
    [
        lambda may: pa.list_(pa.field("element", pa.string(), may)),
        lambda may: pa.struct([pa.field("n", pa.int64(), may)]),
        lambda may: pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.int64(), may)), may)),
    ],
)
def test_types_are_compared_without_what_may_be_null_in_them(of: Callable[[bool], pa.DataType]) -> None:
    strict, loose = (_types(Schema.from_arrow(pa.schema([("column", of(may))]))) for may in (False, True))
    assert strict == loose
    assert "true" in loose["column"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/lake/orders", "/lake/orders/"),
        ("/lake/orders", "file:///lake/orders"),
        ("/lake/orders", "/lake//./old/../orders"),
        ("s3a://lake/orders", "s3://lake/orders/"),
        ("hdfs://lake/orders", "hdfs://lake//orders"),
    ],
)
def test_parquet_files_of_two_sinks_need_two_paths(pipeline_of: Declare, one: str, other: str) -> None:
    for second in (Parquet(other, name="second"), Delta(other, name="second")):
        with pytest.raises(ConfigurationError, match="sinks 'parquet' and 'second' have the same path"):
            pipeline_of(sinks=(Parquet(one), second))
    pipeline_of(sinks=(Parquet(one), Parquet(f"{other.rstrip('/')}2", name="second")))
    pipeline_of(sinks=(Delta(one), Delta(other, name="second")))


@pytest.mark.parametrize("outer", ["/lake", "file:///lake/", "s3a://lake/all", "hdfs://nn:8020/", "/"])
@pytest.mark.parametrize("inner", ["{}/orders", "{}//raw/./orders/", "{}/a=1"])
def test_the_folder_of_a_sink_contains_no_other(pipeline_of: Declare, outer: str, inner: str) -> None:
    inner = inner.format(outer.rstrip("/"))
    for kinds in ((Parquet, Delta), (Delta, Parquet), (Delta, Delta), (Parquet, Parquet)):
        sinks = tuple(kind(path, name=name) for kind, path, name in zip(kinds, (outer, inner), "ab", strict=True))
        for given in (sinks, sinks[::-1]):
            with pytest.raises(ConfigurationError, match=r"sink 'b' writes to .* inside the folder .* of sink 'a'"):
                pipeline_of(sinks=given)


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("/lake/shop/orders", True),
        ("/lake/shop.db/orders/raw", True),
        ("/lake/shop", True),
        ("/lake", True),
        ("/lake/raw", False),
        ("/lake/shop/orders2", False),
    ],
)
def test_nor_the_folder_of_an_iceberg_table(pipeline_of: Declare, path: str, is_refused: bool) -> None:
    catalog = {"type": "sql", "uri": "sqlite:///x", "warehouse": "file:///lake/"}
    for sink in (Parquet(path, name="other"), Delta(path, name="other")):
        with pytest.raises(ConfigurationError, match="sink") if is_refused else nullcontext():
            pipeline_of(sinks=(Iceberg("shop.orders", catalog), Iceberg("shop.orders", catalog, name="2"), sink))
