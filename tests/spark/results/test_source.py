"""Results of every back-end as tables: all of them, each once, over several tasks, and nothing secret in plans."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.results.scans import FSResultScan, PartitionSizes, ResultFilter
from penstock.spark.results.source import ResultsOptions
from penstock.sync.results import FSBackend, PostgresBackend, S3Backend
from penstock.sync.tasks import RedisTaskQueue
from penstock.task import Result, encode
from tests.helpers.postgres import PostgresServer
from tests.helpers.s3 import BUCKET, KEY, SECRET, S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 10, 12, tzinfo=UTC)
PASSWORD = "swordfish"
Save = Callable[[list[Result]], object]


def results() -> list[Result]:
    """Of three days, kinds that need escaping, and values that JSON has no word for."""
    made = []
    for n in range(60):
        finished = START + timedelta(hours=n)
        data: Any = {"n": n, "raw": b"\x00\xff"} if n % 2 else n
        status = "error" if n % 10 == 0 else "ok"
        made.append(
            Result(
                task_id=f"t{n}",
                kind="re/size-1" if n % 3 else "mail",
                status=status,
                data=data,
                error="ValueError: <b>" if status == "error" else None,
                attempts=n % 4 + 1,
                started_at=finished - timedelta(seconds=n) if n % 5 else None,
                finished_at=finished,
            )
        )
    return made


@pytest.fixture
def in_files(tmp_path: Path) -> tuple[dict[str, str], Save]:
    return {"backend": "fs", "root": str(tmp_path / "results")}, FSBackend(tmp_path / "results").save_many


@pytest.fixture
def in_postgres(postgres: PostgresServer) -> Iterator[tuple[dict[str, str], Save]]:
    url = postgres.dsn.replace("penstock@", f"penstock:{PASSWORD}@")  # it trusts everybody, with any password
    with PostgresBackend(postgres.dsn) as backend:
        yield {"backend": "postgres", "url": url}, backend.save_many


@pytest.fixture
def in_s3(s3_server: S3Server) -> tuple[dict[str, str], Save]:
    endpoint, url = f"http://127.0.0.1:{s3_server.port}", f"s3://{BUCKET}/some"
    keys = {"access_key_id": KEY, "secret_access_key": SECRET}
    options = {"backend": "s3", "url": url, "endpoint": endpoint, "region": "us-east-1", "accessKeyId": KEY}
    backend = S3Backend(url, endpoint=endpoint, region="us-east-1", **keys)
    return {**options, "secretAccessKey": SECRET}, backend.save_many


@pytest.fixture
def in_redis(stream_server: EmbeddedServer) -> Iterator[tuple[dict[str, str], Save]]:
    with RedisTaskQueue(stream_server.url, name="jobs") as queue:
        url = stream_server.url.replace("redis://", f"redis://default:{PASSWORD}@")

        def save(made: list[Result]) -> None:
            for result in made:
                queue.push_result(result)

        # The default user has no password here, and takes any.
        yield {"backend": "redis", "url": url, "queue": "jobs"}, save


@pytest.mark.parametrize("place", ["in_files", "in_postgres", "in_s3", "in_redis"])
def test_all_results_are_a_table_and_no_plan_shows_a_secret(
    place: str, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    options, save = request.getfixturevalue(place)
    save(results())
    reader = spark.read.format("penstock_results").options(**options, minPartitions="3")
    table = reader.load()
    rows = [row.asDict() for row in table.collect()]
    assert {row["task_id"]: row for row in rows} == {result.task_id: as_row(result) for result in results()}
    assert len(rows) == 60
    # Those in Redis are cut by the time of their entries, and these were added within a few milliseconds.
    assert table.rdd.getNumPartitions() >= (2 if place == "in_redis" else 3)
    text = explained(table)
    assert not any(secret in text for secret in (PASSWORD, SECRET))

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        reader = reader.option("filterPushdown", "true").option("kind", "mail")
        late = reader.schema("task_id string, status string, finished_at timestamp").load()
        since = START + timedelta(hours=30)
        chosen = late.where(f"finished_at >= timestamp'{since:%Y-%m-%d %H:%M}' and status = 'ok'").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert {row.task_id for row in chosen} == {f"t{n}" for n in range(30, 60, 3) if n % 10}


def as_row(result: Result) -> dict[str, Any]:
    def naive(moment: datetime | None) -> datetime | None:
        return None if moment is None else moment.replace(tzinfo=None)  # as PySpark hands them over

    data = {"n": result.data["n"], "raw": "AP8="} if isinstance(result.data, dict) else result.data
    return {
        "task_id": result.task_id, "kind": result.kind, "status": result.status.value,
        "data": json.dumps(data, separators=(",", ":")), "error": result.error, "attempts": result.attempts,
        "started_at": naive(result.started_at), "finished_at": naive(result.finished_at),
    }  # fmt: skip


def explained(table: DataFrame) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        table.explain(mode="extended")
    return shown.getvalue() + table._jdf.queryExecution().toString()


def test_folders_that_nothing_was_saved_to_since_are_not_read(in_files: Any, tmp_path: Path) -> None:
    """And one that was is read, though its name tells an earlier day: somebody else had claimed the id."""
    options, save = in_files
    save(results())
    root = tmp_path / "results"
    days = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    for n, day in enumerate(days):
        long_ago = (START + timedelta(days=n)).timestamp()
        os.utime(day, (long_ago, long_ago))
    os.utime(days[0])
    scan = ResultsOptions.parse(options).scan
    parts = scan.plan(ResultFilter(since=START + timedelta(days=3)), PartitionSizes(max_rows=1))
    assert len(days) == 3
    assert {folder for part in parts for folder in part.folders} == {days[0].name, days[2].name}


def test_what_is_read_of_the_file_system_is_told_by_the_settings(
    in_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").write_text(f'[result_backend]\nprovider = "fs"\nroot = "{tmp_path}/results"\n')
    options = ResultsOptions.parse({"config": str(tmp_path / "penstock.toml")})
    assert options.scan == FSResultScan(f"{tmp_path}/results")


def test_several_results_of_one_entry_are_read_and_those_of_tasks_that_were_put_back_are_not(
    stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    fields: list[Any] = []
    for result in results()[:3]:
        fields += ["task_id", result.task_id, "kind", result.kind, "status", "ok", "data", encode(result)]
    entry_id = stream_redis.execute_command("XADD", "jobs.results", "*", *fields)
    later = stream_redis.execute_command("XADD", "jobs.results", "*", *fields[16:])
    stream_redis.xadd("jobs.results", {"data": b"no result"})
    stream_redis.hset("{jobs}:done", mapping={"t0": entry_id, "t2": later})  # t1 was put back, t2 ran again since
    scan = ResultsOptions.parse({"backend": "redis", "url": stream_server.url, "queue": "jobs"}).scan
    read = [
        result
        for part in scan.plan(ResultFilter(), PartitionSizes())
        for page in scan.read(part, ResultFilter())
        for result in page
    ]
    assert [result.task_id for result in read] == ["t0", "t2"]
    assert "redis://" not in repr(scan)


def test_a_place_without_results_is_told_and_nothing_is_created_there(postgres: PostgresServer, tmp_path: Path) -> None:
    for options, why in (
        ({"backend": "fs", "root": str(tmp_path / "none")}, "there are no results at"),
        ({"backend": "postgres", "url": postgres.dsn}, "the table penstock_results does not exist"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            ResultsOptions.parse(options).scan.plan(ResultFilter(), PartitionSizes())
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match="the table penstock_results does not exist"):
        ResultsOptions.parse({"backend": "postgres", "url": postgres.dsn}).scan.plan(
            ResultFilter(), PartitionSizes(min_parts=4)
        )
