"""Two drivers on one checkpoint: the second is refused, and where no lock is to be had, neither harms the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from psycopg import conninfo
from pyiceberg.exceptions import CommitFailedException

from penstock.spark.lake.delta import CommitConflict
from penstock.spark.lake.iceberg import IcebergBusy
from penstock.spark.pipeline import Delta, Iceberg, Parquet, Pipeline, Postgres
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import BatchKey, Files
from penstock.spark.pipeline.running import Report, Run
from penstock.spark.pipeline.sinks.delta import DeltaWriter
from penstock.spark.pipeline.sinks.parquet import ParquetWriter
from penstock.spark.pipeline.sinks.postgres import PostgresWriter
from penstock.spark.pipeline.status import PipelineBusy, last_state
from tests.spark.pipeline.conftest import add_orders, iceberg_catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]
KEY = BatchKey("0123456789abcdef", 3)


def test_a_second_run_is_refused_while_the_first_one_writes(
    spark: SparkSession,
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: Callable[..., Report],
    table: Callable[..., list[Any]],
    tmp_path: Path,
) -> None:
    add_orders(stream_redis, 5)
    pipeline = pipeline_of()

    def second(step: str) -> None:
        if step == "parquet written":
            with pytest.raises(PipelineBusy, match="already runs a pipeline"):
                Run(pipeline, spark, once=True).run()

    run(pipeline, mark=second)
    assert table() == list(range(5))
    word = last_state(tmp_path / "checkpoint")
    assert word is not None
    assert word.state == "done"


def test_two_that_write_the_same_batch_at_once_leave_it_once(spark: SparkSession, tmp_path: Path) -> None:
    rows, files = spark.range(10), Files(spark)
    told = []

    def meanwhile(writer: Any) -> Callable[[str], None]:
        def other(step: str) -> None:
            if step.endswith(" written"):
                told.append(writer.write(rows, KEY, lambda _: None))

        return other

    delta = Delta(str(tmp_path / "delta"))
    told.append(DeltaWriter(delta, files).write(rows, KEY, meanwhile(DeltaWriter(delta, files))))
    assert told == [True, False]
    found = DeltaTable(delta.path)
    assert sorted(found.to_pyarrow_table()["id"].to_pylist()) == list(range(10))
    left = {str(file) for file in (tmp_path / "delta").rglob("*.parquet")}
    assert left == set(found.file_uris())

    parquet = Parquet(str(tmp_path / "parquet"))
    told.append(ParquetWriter(parquet, files).write(rows, KEY, meanwhile(ParquetWriter(parquet, files))))
    assert told == [True, False, True, False]
    assert spark.read.parquet(parquet.path).count() == 10
    assert not ParquetWriter(parquet, files).write(rows, KEY, lambda _: None)
    assert not list((tmp_path / "parquet" / "_penstock").iterdir())


def test_a_commit_whose_answer_was_lost_keeps_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that repeats a put finds its own commit in the way, and calls it a conflict."""
    write = DeltaTable.create_write_transaction

    def write_and_conflict(*given: Any, **more: Any) -> None:
        write(*given, **more)
        raise CommitFailedError("the version exists already")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_and_conflict)
    sink = Delta(str(tmp_path / "delta"))
    assert DeltaWriter(sink, Files(spark)).write(spark.range(10), KEY, lambda _: None) is True
    assert sorted(DeltaTable(sink.path).to_pyarrow_table()["id"].to_pylist()) == list(range(10))


@pytest.mark.parametrize("store", ["delta", "iceberg"])
def test_a_commit_waits_longer_each_time_that_another_writer_is_faster(
    spark: SparkSession, pipeline_of: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("penstock.spark.lake.files.pause", pauses.append)

    def conflict(*_: Any, **__: Any) -> None:
        raise CommitFailedError("the version exists already") if store == "delta" else CommitFailedException("changed")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", conflict)
    monkeypatch.setattr("pyiceberg.table.Transaction.add_files", conflict)
    delta, iceberg = Delta(str(tmp_path / "delta")), Iceberg("shop.table", iceberg_catalogue(tmp_path))
    writer = writer_of(delta if store == "delta" else iceberg, pipeline_of(), spark)
    with pytest.raises(CommitConflict if store == "delta" else IcebergBusy):
        writer.write(spark.range(3), KEY, lambda _: None)
    assert pauses == sorted(pauses)
    assert len(set(pauses)) == 5


@pytest.mark.rotates
def test_pipelines_that_share_a_database_do_not_wait_for_each_other(
    spark: SparkSession, postgres: PostgresServer
) -> None:
    rows = spark.range(3)
    impatient = conninfo.make_conninfo(postgres.dsn, options="-c lock_timeout=3000")

    def other(step: str) -> None:
        if step == "postgres moved":
            second = PostgresWriter(Postgres(impatient, "b", create=True))
            assert second.write(rows, BatchKey("another", 0), lambda _: None)

    first = Postgres(postgres.dsn, "a", create=True)
    assert PostgresWriter(first).write(rows, KEY, other)
    assert not PostgresWriter(first).write(rows, KEY, other)
    assert postgres.execute("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)") == [(3, 3)]
