"""`penstock pipeline`, as a shell sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from typer.testing import CliRunner

from penstock.cli import pipeline as commands
from penstock.cli.app import app
from penstock.redis.embedded import EmbeddedServer
from tests.spark.clusters import fast_start
from tests.spark.driver import ROOT, Process
from tests.spark.pipeline.conftest import add_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = """\
name = "orders"
checkpoint = "{place}/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "n bigint"
[[step]]
sql = "SELECT n FROM input"
[[sink]]
kind = "parquet"
path = "{place}/table"
"""


@pytest.fixture
def file(stream_server: EmbeddedServer, tmp_path: Path) -> Path:
    made = tmp_path / "orders.toml"
    made.write_text(TEXT.format(place=tmp_path, url=stream_server.url))
    return made


@pytest.fixture
def penstock(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command in this process, on the session that all tests share."""

    @contextmanager
    def shared(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(commands, "_session", shared)
    return lambda *words: CliRunner().invoke(app, ["pipeline", *map(str, words)])


def test_a_pipeline_is_validated_run_and_looked_at(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, table: Callable[..., list[Any]]
) -> None:
    add_orders(stream_redis, 20)
    assert penstock("validate", file).stdout == f"{file}: pipeline 'orders' can run\n"
    assert "committed nothing yet, lag 20\n  driver: never started" in penstock("status", file).stdout
    result = penstock("run", file)
    assert result.exit_code == 0
    assert "batch 0: 20 rows in" in result.stderr
    assert "orders: done after 1 batches, 20 rows" in result.stderr
    assert table() == list(range(20))
    found = json.loads(penstock("status", file, "--json").stdout)
    assert (found["committed_batch"], found["lag"], found["last"]["rows"]) == (0, 0, 20)
    assert "committed batch 0, lag 0\n  driver: done at " in penstock("status", file).stdout


@pytest.mark.parametrize("command", ["validate", "run"])
def test_faults_are_a_line_each_and_end_with_two(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, command: str, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    (tmp_path / "table").write_text("in the way")
    file.write_text(file.read_text().replace("checkpoint = ", 'checkpoint = "/dev/null/here" #'))
    result = penstock(command, file)
    assert result.exit_code == 2
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["penstock", "penstock"]
    assert not (tmp_path / "checkpoint").exists()


def test_a_wrong_key_ends_with_two_before_spark_starts(file: Path) -> None:
    file.write_text(file.read_text().replace("schema =", "shema ="))
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", "run", str(file)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == f"penstock: {file}:6: [source] has an unknown key 'shema'; did you mean 'schema'?\n"


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("sc://127.0.0.1:1", "--master sc://127.0.0.1:1: no Spark Connect server can be reached ("),
        ("spark:/host:7077", "--master 'spark:/host:7077' must be local[4], spark://host:7077,"),
    ],
)
def test_a_master_that_cannot_be_is_told_before_spark_starts(file: Path, master: str, told: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", "validate", str(file), "--master", master])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"penstock: {told}")


@pytest.mark.slow
def test_sigterm_ends_a_continuous_run_after_its_batch(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--continuous", "--master", "local[1]"]
    with Process(command, tmp_path, {"PYTHONPATH": str(ROOT), **fast_start()}) as process:
        process.wait_for_line("batch 0: 10 rows")
        os.kill(process.pid, signal.SIGTERM)
        assert process.end()[-1] == "orders: stopped after 1 batches, 10 rows"
    assert list((tmp_path / "table").glob("batch=*/*.parquet"))
