"""Preview, reset, restarts, metrics and lineage."""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

from penstock.errors import ConfigurationError
from penstock.events import Event, EventName
from penstock.spark.pipeline import (
    Delta,
    Handler,
    Iceberg,
    Jdbc,
    Lineage,
    Parquet,
    Pipeline,
    Postgres,
    RedisStreams,
    Rule,
    Source,
    Sql,
)
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.lineage import LineageRun
from penstock.spark.pipeline.metrics import PipelineMetrics
from penstock.spark.pipeline.preview import preview
from penstock.spark.pipeline.reset import plan_reset, reset
from penstock.spark.pipeline.running import PipelineFailed, Report, Run
from penstock.spark.pipeline.sinks.postgres import PostgresWriter
from penstock.spark.pipeline.status import Driver, PipelineBusy, Places, status
from penstock.spark.pipeline.validation import PipelineInvalid
from penstock.spark.runtime.errors import is_transient_failure
from penstock.sync.results import PostgresBackend
from tests.helpers.postgres import REFUSED_LOGINS, PostgresServer, refused_login
from tests.helpers.threads import DEADLINE_S, join, start
from tests.spark.pipeline.conftest import SHOP, add_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
Table = Callable[..., list[Any]]

# --- preview ----------------------------------------------------------------------------------------


def test_a_preview_shows_the_rows_of_each_sink_and_writes_nothing(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, tmp_path: Path
) -> None:
    stream_redis.xadd("orders", {"data": "{no json"})
    add_orders(stream_redis, 10)
    before = {key: stream_redis.dump(key) for key in stream_redis.scan_iter()}
    pipeline = pipeline_of(
        Handler(f"{SHOP}:score", name="scored", output="score double"),
        Sql("SELECT n, score, stream AS _stream, id AS _id FROM input"),
        sinks=(
            Parquet(str(tmp_path / "table"), where="n > 2"),
            Parquet(str(tmp_path / "sums"), from_="scored", name="scored"),
        ),
        rules=Rule("n <> 3"),
        source_max_rows_per_batch=2,
        watermark="1m",
        dedup="message_id",
    )
    found = preview(pipeline, spark, 6)
    assert (found.entries, found.broken) == (6, {"decode_error": 1, "n <> 3": 1})
    assert found.sinks["parquet"] == [{"n": 4, "score": None}]
    assert [row["n"] for row in found.sinks["scored"]] == [0, 1, 2, 4]
    assert found.handlers == (f"{SHOP}:score",)
    assert {key: stream_redis.dump(key) for key in stream_redis.scan_iter()} == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rotates
def test_a_preview_of_a_stream_without_entries_or_with_a_bad_step_is_told(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare
) -> None:
    assert preview(pipeline_of(source_options={"maxOffsetsPerTrigger": "3"}), spark).entries == 0
    add_orders(stream_redis, 5)
    pipeline = pipeline_of(source_starting="latest", source_options={"maxOffsetsPerTrigger": "3"})
    assert [row["n"] for row in preview(pipeline, spark, 2).sinks["parquet"]] == [3, 4]
    with pytest.raises(PipelineInvalid, match=r"step 1 \(sql\): \[UNRESOLVED_COLUMN"):
        preview(pipeline_of(Sql("SELECT m FROM input")), spark)


# --- reset ------------------------------------------------------------------------------------------


def test_after_a_reset_the_next_run_reads_from_there(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 6)
    ids = [entry_id.decode() for entry_id, _ in stream_redis.xrange("orders")]
    pipeline = pipeline_of()
    run(pipeline)
    planned = plan_reset(pipeline, ids[4], 0)
    assert "has committed batch 0. Its next run starts over from " in str(planned)
    reset(pipeline, planned)
    found = status(pipeline)
    assert (found.committed_batch, found.lag, str(found.driver)[:9]) == (None, 6, "reset at ")
    run(pipeline)
    assert table() == [0, 1, 2, 3, 4, 4, 5, 5]
    run(pipeline)
    assert table() == [0, 1, 2, 3, 4, 4, 5, 5]
    reset(pipeline, plan_reset(pipeline, "1h", time.time_ns() // 1_000_000))
    assert run(pipeline).rows == 6
    reset(pipeline, plan_reset(pipeline, "latest", 0))
    assert run(pipeline).rows == 0


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"rows": 1', b"5"])
def test_what_a_crash_of_the_machine_left_of_notes_is_told(
    stream_redis: redis.Redis, pipeline_of: Declare, content: bytes
) -> None:
    pipeline = pipeline_of()
    folder = Path(pipeline.checkpoint)
    folder.mkdir(parents=True)
    (folder / "progress.json").write_bytes(content)
    assert status(pipeline).last is None
    (folder / "start.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match="run `penstock pipeline reset` again"):
        Places(pipeline.checkpoint).starting()


def test_a_pipeline_and_its_preview_start_at_a_time(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    for n, ms in enumerate((1_000, 2_000, 3_000)):
        stream_redis.xadd("orders", {"data": json.dumps({"n": n})}, id=f"{ms}-5")
    pipeline = pipeline_of(source_starting="1970-01-01T00:00:02Z")
    assert preview(pipeline, spark).entries == 2
    run(pipeline)
    assert table() == [1, 2]


def test_a_preview_starts_where_a_reset_says(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare
) -> None:
    add_orders(stream_redis, 5)
    pipeline, third = pipeline_of(), stream_redis.xrange("orders")[2][0].decode()
    for begin, count in ((third, 3), (f"({third}", 2), ("1970-01-01T00:00:02Z", 5), ("earliest", 5)):
        reset(pipeline, plan_reset(pipeline, begin, 0))
        assert preview(pipeline, spark).entries == count


def test_a_pipeline_that_runs_is_not_reset(pipeline_of: Declare, tmp_path: Path) -> None:
    pipeline = pipeline_of()
    with Driver(tmp_path / "checkpoint").alone(), pytest.raises(PipelineBusy):
        reset(pipeline, plan_reset(pipeline, "earliest", 0))
    with pytest.raises(ConfigurationError, match="'noon' is not a time"):
        plan_reset(pipeline, "noon", 0)


# --- restarts ---------------------------------------------------------------------------------------


@pytest.mark.rotates
def test_a_failure_that_passes_is_followed_by_a_restart(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.runtime.restarts._LONGEST_PAUSE_S", 0.01)
    add_orders(stream_redis, 5)
    failures = iter(["Connection refused", "ConnectionLost: the server restarts"])
    events: list[Event] = []

    def fail(step: str) -> None:
        if step == "begun" and (why := next(failures, None)) is not None:
            raise OSError(why)

    running = Run(pipeline_of(), spark, once=False, mark=fail, on_event=events.append, tell=lambda _: running.stop())
    report = running.run()
    assert (report.restarts, report.rows, report.is_stopped, table()) == (2, 5, True, [0, 1, 2, 3, 4])
    assert [event.name for event in events].count(EventName.TRYING_AGAIN) == 2


@pytest.mark.rotates
@pytest.mark.parametrize(("why", "restarts"), [("Connection refused", 1), ("division by zero", 0)])
def test_a_failure_that_stays_ends_the_run(
    spark: SparkSession,
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    restarts: int,
) -> None:
    monkeypatch.setattr("penstock.spark.runtime.restarts._LONGEST_PAUSE_S", 0.01)
    add_orders(stream_redis, 5)

    def fail(_: str) -> None:
        raise OSError(why)

    running = Run(pipeline_of(restarts=1), spark, once=False, mark=fail)
    with pytest.raises(PipelineFailed, match=why):
        running.run()
    assert running.report.restarts == restarts


@pytest.mark.rotates
def test_a_run_of_what_is_there_restarts_if_a_python_worker_was_slow_to_start(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.pipeline import running

    monkeypatch.setattr("penstock.spark.runtime.restarts._LONGEST_PAUSE_S", 0.01)
    add_orders(stream_redis, 5)
    why, validate = "Python worker failed to connect back.", running.validate
    too_slow = iter([True])

    def validated(*given: Any) -> Any:
        if next(too_slow, False):
            raise PipelineInvalid((f"source: {why}",))
        return validate(*given)

    monkeypatch.setattr(running, "validate", validated)
    failures = iter([why, why])

    def fail(step: str) -> None:
        if step == "begun" and (found := next(failures, None)) is not None:
            raise OSError(found)

    report = Run(pipeline_of(), spark, once=True, mark=fail).run()
    assert (report.restarts, report.rows, table()) == (2, 5, [0, 1, 2, 3, 4])
    add_orders(stream_redis, 1)
    failures = iter(["Connection refused"])
    with pytest.raises(PipelineFailed, match="Connection refused"):
        Run(pipeline_of(), spark, once=True, mark=fail).run()


@pytest.mark.parametrize(
    ("failure", "is_passing"),
    [
        ("psycopg.errors.AdminShutdown: terminating connection due to administrator command", True),
        ("psycopg.errors.CannotConnectNow: the database system is starting up", True),
        ("psycopg.errors.DeadlockDetected: deadlock detected", True),
        ("psycopg.errors.SerializationFailure: could not serialize access", True),
        ("psycopg.errors.UndefinedTable: relation does not exist", False),
        ("penstock.spark.lake.files.StoreFailed: s3://bucket/table cannot be used: 503", True),
        ("penstock.spark.pipeline.sinks.jdbc_connection.JdbcUnavailable: This connection has been closed.", True),
        ("org.postgresql.util.PSQLException: FATAL: terminating connection due to administrator command", True),
        ("org.postgresql.util.PSQLException: FATAL: the database system is starting up", True),
        ("org.postgresql.util.PSQLException: ERROR: relation does not exist", False),
        ("OSError: Generic S3 error: Server returned non-2xx status code: 503 Service Unavailable: ", True),
        ("OSError: Generic S3 error: Server returned non-2xx status code: 429 Too Many Requests: ", True),
        ("OSError: Generic S3 error: Server returned non-2xx status code: 501 Not Implemented: ", False),
        ("OSError: Generic S3 error: Server returned non-2xx status code: 403 Forbidden: ", False),
        ("OSError: Generic S3 error: HTTP error: error sending request", True),
        ("(Service: S3, Status Code: 503, Request ID: x)", True),
        ("OSError: When reading information for key 'x': AWS Error SLOW_DOWN during HeadObject operation", True),
        ("OSError: When reading information for key 'x': AWS Error ACCESS_DENIED during HeadObject operation", False),
        ("pyiceberg.exceptions.ServiceUnavailableError: ServiceUnavailableException: busy", True),
        ("pyiceberg.exceptions.NoSuchTableError: Table does not exist", False),
        ("penstock.spark.lake.iceberg.IcebergBusy: table 'a.b': other writers changed it 5 times", True),
        ("penstock.spark.lake.delta.CommitConflict: the table at /t: conflict", True),
        ("io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] Files were added", True),
        ("IcebergFailed: table 'a.b': org.apache.iceberg.exceptions.CommitFailedException: Branch changed", True),
    ],
)
def test_what_a_restart_or_another_writer_brings_about_passes(failure: str, is_passing: bool) -> None:
    assert is_transient_failure(failure) is is_passing


def _failure_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as failure:
        call()
    return "".join(traceback.format_exception(failure.value))


@pytest.mark.parametrize("place", REFUSED_LOGINS)
def test_a_login_that_postgres_refuses_does_not_pass(postgres: PostgresServer, place: str) -> None:
    dsn, why = refused_login(postgres, place)
    with PostgresBackend(dsn) as backend:
        for call in (lambda: PostgresWriter(Postgres(dsn, "numbers")).last(BatchKey("q", 0)), lambda: backend.get("7")):
            failure = _failure_of(call)
            assert why in failure
            assert not is_transient_failure(failure)


def test_a_postgres_that_is_away_passes() -> None:
    writer = PostgresWriter(Postgres("postgresql://penstock@127.0.0.1:1/postgres", "t"))
    assert is_transient_failure(_failure_of(lambda: writer.last(BatchKey("q", 0))))


# --- metrics and lineage ----------------------------------------------------------------------------


def test_metrics_are_counted_from_events() -> None:
    metrics = PipelineMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)
    batch = {"batch": 1, "rows": 20, "seconds": 1.5, "rows_per_s": 13.3, "lag": None, "eta_s": None}
    metrics(Event(EventName.BATCH_COMMITTED, "orders", "shop", batch))
    metrics(Event(EventName.BATCH_COMMITTED, "orders", "shop", {**batch, "rows": 5, "lag": 7, "eta_s": 2.0}))
    metrics(Event(EventName.RULE_BROKEN, "orders", "shop", {"rule": "n > 0", "action": "warn", "count": 3}))
    metrics(Event(EventName.TRYING_AGAIN, "orders", "shop", {"error": "x", "pause_s": 1.0}))
    text = generate_latest(registry).decode()
    for line in (
        'penstock_pipeline_batches_total{pipeline="shop"} 2.0',
        'penstock_pipeline_rows_total{pipeline="shop"} 25.0',
        'penstock_pipeline_restarts_total{pipeline="shop"} 1.0',
        'penstock_pipeline_lag_entries{pipeline="shop"} 7.0',
        'penstock_pipeline_rule_broken_total{action="warn",pipeline="shop",rule="n > 0"} 3.0',
    ):
        assert line in text


def declared(lineage: Lineage) -> Pipeline:
    return Pipeline(
        "shop",
        Source("redis://user:hunter2@redis:6380/0", ("orders",)),
        (
            Parquet("s3a://lake/orders"),
            Postgres("postgresql://user:hunter2@db/shop", "orders"),
            RedisStreams("copy"),
        ),
        "/c",
        lineage=lineage,
    )


def test_lineage_is_told_to_a_file_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    run = LineageRun(declared(Lineage(str(file), "prod")), is_continuous=False)
    run.emit("START")
    run.emit("FAIL", 7, "postgresql://user:hunter2@db/shop does not answer")
    assert "hunter2" not in file.read_text()
    start, fail = map(json.loads, file.read_text().splitlines())
    assert (start["eventType"], start["job"]["namespace"], start["job"]["name"]) == ("START", "prod", "shop")
    assert start["run"]["runId"] == fail["run"]["runId"]
    assert start["inputs"] == [{"namespace": "redis://redis:6380", "name": "orders"}]
    assert start["outputs"] == [
        {"namespace": "s3://lake", "name": "orders"},
        {"namespace": "postgres://db:5432", "name": "shop.public.orders"},
        {"namespace": "redis://redis:6380", "name": "copy"},
    ]
    assert "does not answer" in fail["run"]["facets"]["errorMessage"]["message"]


@pytest.mark.parametrize(
    ("sink", "namespace", "name"),
    [
        (Iceberg("a.b", {"uri": "postgresql+psycopg://u:hunter2@db:5433/cat?x=1"}), "postgresql+psycopg://db:5433/cat", "a.b"),
        (Iceberg("a.b", {"uri": "sqlite:////data/cat.db"}), "sqlite:////data/cat.db", "a.b"),
        (Postgres("host=db port=5433 dbname=shop user=u password='hunter2 x'", "t"), "postgres://db:5433", "shop.public.t"),
        (Postgres("postgresql://u:hunter2%40@/shop?host=db", "s.t"), "postgres://db:5432", "shop.s.t"),
        (Jdbc("jdbc:sqlserver://db:1433;user=u;password=p@hunter2", "t"), "jdbc:db:1433", "t"),
        (Jdbc("jdbc:mysql://u:p/w@hunter2@db/shop?password=hunter2", "t"), "jdbc:db", "t"),
        (Jdbc("jdbc:oracle:thin:u/hunter2@//db:1521/shop", "t"), "jdbc:db:1521", "t"),
        (Jdbc("jdbc:derby:memory:shop;create=true", "t"), "jdbc:localhost", "t"),
        (Parquet("s3a://key:hunter2/x@lake/orders"), "s3://lake", "orders"),
        (Delta("s3a://key:hunter2@lake/orders"), "s3://lake", "orders"),
        (Delta("s3://lake/orders@v2"), "s3://lake", "orders@v2"),
        (Delta("abfss://data@lake.dfs.core.windows.net/t"), "abfss://lake.dfs.core.windows.net", "data/t"),
        (Parquet("/data/a b#1"), "file", "/data/a b#1"),
        (RedisStreams("copy", url="redis://u:hunter2/12@copies/0"), "redis://copies:6379", "copy"),
    ],
)  # fmt: skip
def test_a_data_set_is_named_by_host_port_and_path_alone(sink: Any, namespace: str, name: str) -> None:
    lineage = Lineage("/dev/null")
    pipeline = Pipeline("shop", Source("redis://redis", "orders"), sink, "/c", lineage=lineage)
    event = LineageRun(pipeline, is_continuous=False).event("START", lineage)
    assert event["outputs"] == [{"namespace": namespace, "name": name}]
    assert "hunter2" not in json.dumps(event)


def test_a_server_that_speaks_no_http_stops_nothing_and_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(DEADLINE_S)
                connection.recv(65_536)
                connection.sendall(b"hunter2 is no status\r\n\r\n")

        answering = start(answer)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        LineageRun(declared(Lineage(url)), is_continuous=True).emit("START")
        join(answering)
    LineageRun(declared(Lineage("http://host:port hunter2/")), is_continuous=True).emit("FAIL")
    assert "could not send the OpenLineage event START" in caplog.text
    assert "could not send the OpenLineage event FAIL" in caplog.text
    assert "hunter2" not in caplog.text


def test_lineage_is_told_to_a_server_and_one_that_is_away_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    received: list[tuple[str | None, dict[str, Any]]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        answering = start(server.handle_request)
        url = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
        LineageRun(declared(Lineage(url, token="t0ken")), is_continuous=True).emit("START")
        join(answering)
    [(authorization, event)] = received
    assert authorization == "Bearer t0ken"
    assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    LineageRun(declared(Lineage(url)), is_continuous=True).emit("START")
    assert "could not send the OpenLineage event START" in caplog.text


def test_the_token_of_a_lineage_server_does_not_follow_a_redirect(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        answering = start(server.serve_forever)
        url = f"http://127.0.0.1:{server.server_port}/"
        LineageRun(declared(Lineage(url, token="t0ken")), is_continuous=True).emit("START")
        server.shutdown()
        join(answering)
    assert not asked
    assert "could not send the OpenLineage event START" in caplog.text
    assert "302" in caplog.text


@pytest.mark.rotates
def test_a_run_tells_of_its_lineage(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, tmp_path: Path
) -> None:
    add_orders(stream_redis, 3)
    file = tmp_path / "events.jsonl"
    run(pipeline_of(lineage=Lineage(str(file))))
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"]
    assert events[1]["run"]["facets"]["penstock_progress"]["rows"] == 3
