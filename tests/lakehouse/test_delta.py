"""Delta Lake with its own jars: what the jar-less writer promises, and both on one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from deltalake import DeltaTable

from penstock.spark.lake.files import no_fail_point
from penstock.spark.pipeline import Delta, Handler, Parquet, Pipeline, Sql
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.spark.pipeline.sinks.delta import DeltaSparkWriter, DeltaWriter
from penstock.spark.pipeline.validation import PipelineInvalid
from tests.spark.pipeline.conftest import SHOP, add_orders, dead_letters
from tests.spark.pipeline.test_crashes import crash_after, crash_after_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]


def rows_of(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist())


def test_jars_are_found_by_themselves(spark: SparkSession, pipeline_of: Declare) -> None:
    pipeline = pipeline_of()
    kinds = {"auto": DeltaSparkWriter, "spark": DeltaSparkWriter, "python": DeltaWriter}
    for library, kind in kinds.items():
        assert type(writer_of(Delta("/x", library=library), pipeline, spark)) is kind
    assert type(writer_of(Delta("/x", options={"AWS_REGION": "x"}), pipeline, spark)) is DeltaWriter


def test_a_crash_after_any_step_loses_no_row_and_doubles_none(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path
) -> None:
    add_orders(stream_redis, 30)
    path = str(tmp_path / "delta")
    pipeline = pipeline_of(
        Handler(f"{SHOP}:fickle"),
        Sql("SELECT n, n % 2 AS parity, timestamp FROM input"),
        sinks=(Delta(path, partition_by=("parity",), library="spark"),),
        source_max_rows_per_batch=20,
    )
    crash_after_each(run, pipeline, ["begun", "delta read", "delta committed", "done"])
    add_orders(stream_redis, 5, first=30)
    run(pipeline)
    assert sorted([*rows_of(path), *given_up(stream_redis)]) == list(range(35))


def given_up(client: redis.Redis) -> list[int]:
    import json

    return [json.loads(letter["data"])["n"] for letter in dead_letters(client)]


@pytest.mark.parametrize(("first", "then"), [("spark", "python"), ("python", "spark")])
def test_a_batch_of_one_library_is_known_to_the_other(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path, first: str, then: str
) -> None:
    add_orders(stream_redis, 10)
    path = str(tmp_path / "delta")
    # Spark repeats the batch, since it was not told that it is done; the other library finds it in the table.
    with pytest.raises(PipelineFailed, match="Crash: delta committed"):
        run(
            pipeline_of(Sql("SELECT n FROM input"), sinks=(Delta(path, library=first),)),
            mark=crash_after("delta committed"),
        )
    add_orders(stream_redis, 5, first=10)
    report = run(pipeline_of(Sql("SELECT n FROM input"), sinks=(Delta(path, library=then),)))
    assert (report.batches, rows_of(path)) == (2, list(range(15)))


@pytest.mark.parametrize("library", ["spark", "python"])
def test_a_batch_is_found_however_many_commits_follow_it_and_whichever_library_wrote_it(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path, library: str
) -> None:
    path, key = str(tmp_path / "delta"), BatchKey("query", 3)
    writer_of(Delta(path, library=library), pipeline_of(), spark).write(spark.range(1), key, no_fail_point)
    table = DeltaTable(path)
    for _ in range(60):
        table.alter.set_table_properties({"delta.appendOnly": "false"})
    writer = writer_of(Delta(path, library="spark"), pipeline_of(), spark)
    assert writer.has(key)
    assert writer.has(BatchKey("query", 2))
    assert not writer.has(BatchKey("query", 4))
    assert not writer.has(BatchKey("other", 0))
    assert not writer_of(Delta(f"{path}2", library="spark"), pipeline_of(), spark).has(key)


def test_state_is_kept_when_a_batch_is_there_already(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    path = str(tmp_path / "delta")
    pipeline = pipeline_of(
        sinks=(Delta(path, library="spark"),), watermark="1h", dedup=("message_id",), source_max_rows_per_batch=8
    )
    crash_after_each(run, pipeline, ["delta committed"])
    add_orders(stream_redis, 12)  # the first ten again
    run(pipeline)
    assert rows_of(path) == list(range(12))


def test_a_table_that_does_not_fit_is_told(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    path = str(tmp_path / "delta")
    spark.sql("SELECT 'x' AS n, 1 AS day").write.format("delta").partitionBy("day").save(path)
    sinks = (Delta(path, library="spark"), Parquet(str(tmp_path / "table")))
    with pytest.raises(PipelineInvalid) as caught:
        pipeline_of(Sql("SELECT n FROM input"), sinks=sinks).validate(spark)
    assert list(caught.value.problems) == [
        f"sink 1 (delta): the table at {path} has different columns: 'n' is bigint in the rows and string in the table",
        f"sink 1 (delta): the table at {path} is partitioned by ['day'], which differs from partition_by",
    ]


@pytest.mark.parametrize("libraries", [("spark", "spark"), ("spark", "python"), ("python", "spark")])
def test_the_newest_row_of_each_key_stays_whichever_library_merges(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path, libraries: tuple[str, str]
) -> None:
    path = str(tmp_path / "latest")

    def write(number: int, library: str, *rows: tuple[str, str, str]) -> bool:
        sink = Delta(path, ("truncate(1, word)",), library, key="k", delete_when="word = ''", evolve=number > 0)
        frame = spark.createDataFrame(
            [("orders", *row) for row in rows], "stream string, id string, k string, word string"
        )
        writer = writer_of(sink, pipeline_of(), spark)
        assert list(writer.problems(frame.schema)) == []
        return writer.write(frame, BatchKey("q", number), lambda _: None)

    first, then = libraries
    assert write(0, first, ("10-0", "a", "new"), ("9-5", "a", "old"), ("5-9", "b", "old"), ("1-0", "c", "one"))
    assert not write(0, first, ("11-0", "a", "again"))
    assert write(1, then, ("9-9", "a", "stale"), ("6-0", "b", "newer"), ("2-0", "c", ""), ("1-0", "d", ""))
    assert not write(1, then, ("12-0", "a", "again"))
    found = DeltaTable(path).to_pyarrow_table()
    rows = sorted(
        zip(found["k"].to_pylist(), found["word"].to_pylist(), found["word_truncate_1"].to_pylist(), strict=True)
    )
    assert rows == [("a", "new", "n"), ("b", "newer", "n")]
    assert spark.conf.get("spark.databricks.delta.write.txnVersion", None) is None


def test_a_crash_while_a_table_with_a_key_is_made_or_gets_a_column_changes_nothing(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path
) -> None:
    path = tmp_path / "delta"
    (path / "_delta_log").mkdir(parents=True)
    (path / "_delta_log" / ".00000000000000000000.json.tmp").touch()  # as a driver leaves it that is killed earlier
    for first, column in ((0, ""), (10, ", 'x' AS word")):
        add_orders(stream_redis, 10, first=first)
        sink = Delta(str(path), key="n", evolve=True, library="spark")
        pipeline = pipeline_of(Sql(f"SELECT n{column}, stream AS _stream, id AS _id FROM input"), sinks=(sink,))
        crash_after_each(run, pipeline, ["delta prepared", "delta committed"])
        run(pipeline)
    found = DeltaTable(path).to_pyarrow_table().sort_by("n")
    assert found["n"].to_pylist() == list(range(20))
    assert found["word"].to_pylist() == [None] * 10 + ["x"] * 10


@pytest.mark.parametrize("library", ["spark", "python"])
def test_a_new_column_is_added_if_that_is_allowed(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path, library: str
) -> None:
    path = str(tmp_path / "delta")
    for number, rows in enumerate((spark.range(2), spark.range(2, 3).selectExpr("id", "'x' AS word"))):
        writer = writer_of(Delta(path, library=library, evolve=number > 0), pipeline_of(), spark)
        assert list(writer.problems(rows.schema)) == []
        assert writer.write(rows, BatchKey("q", number), lambda _: None)
    assert DeltaTable(path).to_pyarrow_table().sort_by("id")["word"].to_pylist() == [None, None, "x"]
