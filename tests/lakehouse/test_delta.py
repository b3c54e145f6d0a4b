"""Delta Lake with its own jars: what the jar-less writer promises, and both on one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from deltalake import DeltaTable

from penstock.spark.pipeline import Delta, Handler, Parquet, Pipeline, Sql
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.spark.pipeline.validation import PipelineInvalid
from penstock.spark.pipeline.writing.delta import DeltaWriter
from penstock.spark.pipeline.writing.delta_spark import DeltaSparkWriter
from penstock.spark.pipeline.writing.writers import writer_of
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
        f"sink 1 (delta): the table at {path} has other columns: 'n' is bigint here and string there",
        f"sink 1 (delta): the table at {path} is partitioned by ['day'], not by partition_by",
    ]
