"""Pipelines run: rows through steps into sinks, bad rows into the dead letters, and on from the checkpoint."""

from __future__ import annotations

import json
import logging
import threading
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from deltalake import DeltaTable

from penstock.protection import Protection
from penstock.spark.lake.parquet import FilesMissing, check_files
from penstock.spark.pipeline import (
    Console,
    Delta,
    Function,
    Handler,
    Parquet,
    Pipeline,
    Postgres,
    RedisStreams,
    Results,
    Sql,
)
from penstock.spark.pipeline.files import BatchKey, Files
from penstock.spark.pipeline.running import PipelineFailed, Report, Run
from penstock.spark.pipeline.sinks.console import ConsoleWriter
from penstock.spark.pipeline.sinks.delta import DeltaWriter
from penstock.spark.pipeline.sinks.staged import as_json
from penstock.spark.pipeline.status import status
from tests.helpers.threads import DEADLINE_S
from tests.spark.limits import HAS_LIMITS, limit
from tests.spark.pipeline.conftest import SHOP, add_orders, dead_letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
Table = Callable[..., list[Any]]


def test_each_entry_is_one_row_and_the_next_run_goes_on(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 50)
    batches = 3 if HAS_LIMITS else 1
    pipeline = pipeline_of(source_max_rows_per_batch=limit(20))
    before = status(pipeline)
    report = run(pipeline)
    assert (before.committed_batch, before.lag) == (None, 50)
    assert (report.batches, report.rows, table()) == (batches, 50, list(range(50)))
    add_orders(stream_redis, 10, first=50)
    assert (status(pipeline).committed_batch, status(pipeline).lag) == (batches - 1, 10)
    report = run(pipeline)
    assert (report.rows, table()) == (10, list(range(60)))
    assert status(pipeline).lag == 0
    assert status(pipeline).last["rows"] == 10


def test_steps_follow_each_other_and_find_earlier_ones_by_name(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 10)
    run(
        pipeline_of(
            Sql("SELECT n, stream FROM input WHERE n >= 4", name="big"),
            Sql("SELECT n FROM input WHERE n < 8"),
            Function(f"{SHOP}:doubled"),
        )
    )
    assert table("twice") == [8, 10, 12, 14]


def test_rows_that_do_not_decode_or_are_not_valid_are_dead_letters_and_the_rest_goes_on(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 3)
    bad_id = stream_redis.xadd("orders", {"data": "{no json", "key": "k", "mine": "kept"}).decode()
    stream_redis.xadd("orders", {"data": json.dumps({"n": None})})
    stream_redis.xadd("orders", {"data": json.dumps({"n": -1})})
    stream_redis.xadd("orders", {"other": "no payload"})
    run(pipeline_of(source_valid=("n >= 0",)))
    assert table() == [0, 1, 2]
    letters = sorted(dead_letters(stream_redis), key=lambda letter: letter["dlq_id"])  # tasks write side by side
    assert [letter["dlq_reason"] for letter in letters] == ["decode_error", "invalid", "invalid", "decode_error"]
    first = letters[0]
    assert (first["data"], first["key"], first["mine"]) == ("{no json", "k", "kept")
    assert (first["dlq_source"], first["dlq_id"], first["dlq_group"]) == ("orders", bad_id, "shop")
    assert first["dlq_error"] == "DecodeError"
    assert "n >= 0" in letters[2]["dlq_error_text"]
    assert "`n` IS NOT NULL" in letters[1]["dlq_error_text"]


def test_the_handler_of_the_workers_runs_on_the_executors(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 20)
    run(pipeline_of(Handler(f"{SHOP}:score", output="score double", batch_size=5), Sql("SELECT n, score FROM input")))
    good = [n for n in range(20) if n % 10 not in (7, 8)]
    assert table() == good
    assert table("score") == [n / 2 for n in good]
    told = {(json.loads(letter["data"])["n"], letter["dlq_reason"]): letter for letter in dead_letters(stream_redis)}
    assert set(told) == {(7, "max_deliveries"), (17, "max_deliveries"), (8, "fatal"), (18, "fatal")}
    assert told[7, "max_deliveries"]["dlq_error"] == "ValueError"
    assert told[7, "max_deliveries"]["dlq_attempts"] == "3"


def test_messages_at_which_a_handler_hangs_are_given_up_and_the_rest_goes_on(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 8)
    run(pipeline_of(Handler(f"{SHOP}:stuck", max_attempts=2, timeout="500ms")))
    assert table() == [0, 1, 2, 4, 6, 7]
    told = {json.loads(letter["data"])["n"]: letter for letter in dead_letters(stream_redis)}
    assert sorted(told) == [3, 5]
    assert {letter["dlq_reason"] for letter in told.values()} == {"max_deliveries"}
    assert {letter["dlq_error"] for letter in told.values()} == {"HandlerTimeout"}
    assert len(dead_letters(stream_redis)) == 2


def test_messages_that_end_their_process_are_given_up_and_the_rest_goes_on(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 8)
    run(pipeline_of(Handler(f"{SHOP}:deadly")))
    assert table() == [0, 1, 2, 4, 6, 7]
    told = {json.loads(letter["data"])["n"]: letter for letter in dead_letters(stream_redis)}
    assert {n: (letter["dlq_reason"], letter["dlq_error"], letter["dlq_attempts"]) for n, letter in told.items()} == {
        3: ("max_deliveries", "SystemExit", "3"),
        5: ("max_deliveries", "WorkerDied", "3"),
    }
    assert len(dead_letters(stream_redis)) == 2
    assert not list(stream_redis.scan_iter(match="*begun*"))


def test_messages_that_a_handler_does_not_return_are_given_up(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 6)
    run(pipeline_of(Handler(f"{SHOP}:lazy", max_attempts=2)))
    assert table() == [0, 2, 4]
    assert {letter["dlq_error"] for letter in dead_letters(stream_redis)} == {"NotDone"}


@pytest.mark.slow
def test_repeated_messages_count_once(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 10)
    pipeline = pipeline_of(watermark="10 minutes", dedup=("message_id",))
    run(pipeline)
    add_orders(stream_redis, 12)
    stream_redis.xadd("orders", {"data": '{"n": 100}'})
    stream_redis.xadd("orders", {"data": '{"n": 101}'})  # two without a message id are not the same
    run(pipeline)
    assert table() == [*range(12), 100, 101]


@pytest.mark.slow
def test_windows_are_counted(stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table) -> None:
    for minute in range(4):
        for second in range(5):
            stream_redis.xadd("orders", {"data": '{"n": 1}'}, id=f"{(minute * 60 + second) * 1000 + 1}-0")
    counts = "SELECT window.start AS minute, count(*) AS n FROM input GROUP BY window(timestamp, '1 minute')"
    pipeline = pipeline_of(Sql(counts), watermark="30s")
    run(pipeline)
    stream_redis.xadd("orders", {"data": '{"n": 1}'}, id="600000-0")
    run(pipeline)
    assert table() == [5, 5, 5, 5]


def test_windows_are_counted_behind_a_handler_and_without_repetitions(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    for n in (0, 1, 2, 3, 60, 61, 600):
        for _ in range(2):
            fields = {"data": json.dumps({"n": n}), "message_id": f"m{n}"}
            stream_redis.xadd("orders", fields, id=f"{n * 1000 + 1}-*")
    sums = "SELECT window.start AS minute, sum(score) AS n FROM input GROUP BY window(timestamp, '1 minute')"
    run(pipeline_of(Handler(f"{SHOP}:score", output="score double"), Sql(sums), watermark="30s", dedup="message_id"))
    assert table() == [3.0, 60.5]


def test_all_sinks_get_the_same_rows(
    spark: SparkSession,
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: RunOnce,
    table: Table,
    postgres: PostgresServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_orders(stream_redis, 30)
    sinks = (
        Parquet(str(tmp_path / "table"), partition_by=("parity",)),
        RedisStreams("copy"),
        Postgres(postgres.dsn, "orders", create=True),
        Postgres(postgres.dsn, "parities", key=("parity",), create=True, name="parities"),
        Results(id="n", result_kind="order", backend="postgres", options={"dsn": postgres.dsn, "timeout_s": "20"}),
        Console(rows=2),
    )
    run(pipeline_of(Handler(f"{SHOP}:fickle"), Sql("SELECT n, n % 2 AS parity FROM input"), sinks=sinks))
    rows = table()
    assert len(rows) + len(dead_letters(stream_redis)) == 30
    assert sorted(json.loads(fields[b"data"])["n"] for _, fields in stream_redis.xrange("copy")) == rows
    assert [n for (n,) in postgres.execute("SELECT n FROM orders ORDER BY n")] == rows
    assert postgres.execute("SELECT parity FROM parities ORDER BY parity") == [(0,), (1,)]
    assert [n for (n,) in postgres.execute("SELECT task_id::int FROM penstock_results ORDER BY 1")] == rows
    assert "batch 0" in capsys.readouterr().out


@pytest.mark.needs_limits
def test_a_backlog_that_the_driver_merges_is_split_into_batches_by_default(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.pipeline.plan._MOST_MERGED", 10)
    sinks = Delta(str(tmp_path / "latest"), key="n")
    for most, batches in ((None, 2), (15, 1)):  # a limit that is declared counts
        add_orders(stream_redis, 15)
        report = run(pipeline_of(Sql("SELECT n FROM input"), sinks=sinks, source_max_rows_per_batch=most))
        assert report.batches == batches


@pytest.mark.needs_limits
def test_a_stop_lets_the_batch_end_and_the_next_run_goes_on(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 40)
    pipeline = pipeline_of(source_max_rows_per_batch=10)

    def stop_in_second(step: str) -> None:
        steps.append(step)
        if steps.count("begun") == 2:
            running.stop()

    steps: list[str] = []
    running = Run(pipeline, spark, once=False, mark=stop_in_second)
    report = running.run()
    assert (report.is_stopped, report.batches, steps[-1]) == (True, 2, "done")
    assert table() == list(range(20))
    run(pipeline)
    assert table() == list(range(40))


def test_a_continuous_run_that_waits_for_entries_can_be_stopped(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, table: Table
) -> None:
    add_orders(stream_redis, 5)
    running = Run(pipeline_of(max_lag=1), spark, once=False, tell=lambda _: running.stop())
    assert running.run().is_stopped
    assert table() == list(range(5))


def test_a_failing_batch_is_told_in_one_line(stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce) -> None:
    add_orders(stream_redis, 5)
    with pytest.raises(PipelineFailed) as caught:
        run(pipeline_of(Sql("SELECT CAST(raise_error('the sky fell') AS bigint) AS n FROM input")))
    assert "the sky fell" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["json", "raw"])
def test_payloads_that_are_not_signed_are_dead_letters(
    form: str, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'mode = "sign"\n[keys]\na = "{b64encode(b"k" * 32).decode()}"\n')
    signed = Protection.from_file(keys).protect(b'{"n": 7}', "orders", "m-7")
    stream_redis.xadd("orders", {"data": signed, "message_id": "m-7"})
    add_orders(stream_redis, 1)
    given: dict[str, Any] = {"source_options": {"protectionFile": str(keys)}, "source_format": form}
    given |= {"source_schema": None} if form == "raw" else {}
    number = Sql("SELECT CAST(get_json_object(CAST(data AS string), '$.n') AS bigint) AS n FROM input")
    run(pipeline_of(number, **given))
    assert table() == [7]
    [letter] = dead_letters(stream_redis)
    assert (letter["dlq_reason"], letter["dlq_error"]) == ("not_authentic", "NotAuthentic")


@pytest.mark.slow
def test_the_console_alone_takes_in_every_row_that_it_does_not_show(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, capsys: pytest.CaptureFixture[str]
) -> None:
    add_orders(stream_redis, 60)
    add_orders(stream_redis, 1)
    stream_redis.xadd("orders", {"data": "broken"})
    pipeline = pipeline_of(
        sinks=(Console(rows=1),), watermark="1h", dedup=("message_id",), source_max_rows_per_batch=limit(31)
    )
    assert run(pipeline).rows == 62
    assert [letter["dlq_reason"] for letter in dead_letters(stream_redis)] == ["decode_error"]
    assert capsys.readouterr().out.count("|orders|") == (2 if HAS_LIMITS else 1)


def test_the_console_shows_what_a_terminal_would_carry_out_as_escapes(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.createDataFrame([("a\x1b[2Jb\x1b]52;c;eA==\x07\u202ec",)], "note string")
    ConsoleWriter(Console()).write(rows, BatchKey("query", 0), lambda _: None)
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert "a\\x1b[2Jb" in text


def test_a_batch_that_hangs_is_an_alarm_before_it_ends(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.pipeline.running._COLD_START_S", 0.0)
    add_orders(stream_redis, 5)
    told = threading.Event()
    running = Run(pipeline_of(trigger="1ms"), spark, once=False, tell=lambda _: running.stop())

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been running for" in record.getMessage():
                told.set()

    listener = Listener()
    logging.getLogger("penstock.spark").addHandler(listener)
    running._mark = lambda step: step == "parquet written" and told.wait(DEADLINE_S)
    try:
        report = running.run()
    finally:
        logging.getLogger("penstock.spark").removeHandler(listener)
    assert told.is_set(), f"nothing said in {DEADLINE_S} s that the batch hangs"
    assert len(report.alarms) == 1


def test_files_that_are_only_on_the_disk_of_an_executor_are_missed() -> None:
    found = ["part-00000-x.zstd.parquet", "day=1/part-00002-x.c000.zstd.parquet", "_SUCCESS"]
    check_files([0, 2], found, "/table")
    with pytest.raises(FilesMissing, match="the driver cannot see the files that 1 of 3 tasks wrote to /table"):
        check_files([0, 1, 2], found, "/table")


def test_a_time_that_names_the_folders_of_a_delta_table_is_the_same_in_every_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = spark.sql("SELECT 1 AS n, timestamp'2026-11-15 21:00:00' AS hour")
        sink = Delta(str(tmp_path / "delta"), partition_by=("hour",))
        DeltaWriter(sink, Files(spark)).write(rows, BatchKey("0123456789abcdef", 0), lambda _: None)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (hour,) = DeltaTable(sink.path).to_pyarrow_table()["hour"].to_pylist()
    assert hour.isoformat() == "2026-11-16T02:00:00+00:00"


def test_nested_values_are_json_that_postgres_reads(spark: SparkSession) -> None:
    numbers = "array(double('NaN'), double('Infinity'), double('-Infinity'), 1.5D)"
    nested = f"named_struct('a', {numbers}, 'b', map('k', named_struct('c', X'0078', 'd', CAST(NULL AS int))))"
    (found,) = as_json(spark.sql(f"SELECT {nested} AS nested")).collect()
    told = json.loads(found.nested, parse_constant=pytest.fail)
    assert told == {"a": ["NaN", "Infinity", "-Infinity", 1.5], "b": {"k": {"c": "AHg=", "d": None}}}
