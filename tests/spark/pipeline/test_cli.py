"""`penstock pipeline`, as a shell sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from typer.testing import CliRunner

from penstock.cli import pipeline as commands
from penstock.cli.app import app
from penstock.events import Event, EventName
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.running import PipelineFailed, Report
from penstock.spark.pipeline.validation import PipelineInvalid
from tests.helpers.json_names import check
from tests.helpers.threads import DEADLINE_S
from tests.spark.clusters import fast_start
from tests.spark.driver import PYTHONPATH, Process
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
    assert penstock("validate", file).stdout == f"{file}: pipeline 'orders' is valid\n"
    valid = {"file": str(file), "pipeline": "orders", "is_valid": True, "problems": []}
    told = json.loads(penstock("validate", file, "--json").stdout)
    assert told == valid
    check("pipeline validate", [told])
    assert "committed nothing yet, lag 20\n  driver: never started" in penstock("status", file).stdout
    result = penstock("run", file)
    assert result.exit_code == 0
    assert "batch 0: 20 rows in" in result.stderr
    assert "orders: done after 1 batches, 20 rows" in result.stderr
    assert table() == list(range(20))
    found = json.loads(penstock("status", file, "--json").stdout)
    assert (found["committed_batch"], found["lag"], found["last"]["rows"]) == (0, 0, 20)
    check("pipeline status", [found])
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


@pytest.mark.slow
def test_a_run_that_fails_shows_its_secrets_nowhere(
    penstock: Callable[..., Any],
    spark: SparkSession,
    file: Path,
    stream_redis: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Neither whole nor in part, where a long message is cut in the midst of one."""
    add_orders(stream_redis, 3)
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-" * 4)
    broken = "CASE WHEN n >= 0 THEN raise_error(concat(repeat('x', 545), '${SHOP_TOKEN}')) ELSE n END AS n"
    text = file.read_text().replace("SELECT n FROM", f"SELECT {broken} FROM")
    file.write_text(
        f"{text}[lineage]\nurl = '{tmp_path}/lineage'\n[[rule]]\ncheck = \"'${{SHOP_TOKEN}}' <> string(n)\"\n"
    )
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **fast_start()})
    assert ended.returncode == 1
    events: list[Event] = []
    with pytest.raises(PipelineFailed) as caught:
        Pipeline.from_file(file).run(spark, on_event=events.append)
    status = penstock("status", file).stdout
    assert "failed at" in status
    assert [event.name for event in events] == [EventName.FAILED]
    for shown in (
        ended.stdout + ended.stderr,
        str(caught.value),
        status,
        repr(events),
        (tmp_path / "lineage").read_text(),
    ):
        assert "xxx***" in shown
        assert "hunt" not in shown


def test_a_status_is_one_object_in_a_pipe_and_one_line_without_a_server(file: Path) -> None:
    told = CliRunner().invoke(app, ["pipeline", "status", str(file), "--json"])
    assert (told.exit_code, json.loads(told.stdout)["name"], told.stderr) == (0, "orders", "")
    away = file.with_name("away.toml")
    away.write_text(TEXT.format(place=file.parent, url="redis://127.0.0.1:1"))
    failed = CliRunner().invoke(app, ["pipeline", "status", str(away), "--json"])
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert re.fullmatch(r"penstock: cannot connect to Redis at 127.0.0.1:1: .+\n", failed.stderr)


# To validate(), which comes before a run, it is one problem of the pipeline among others.
@pytest.mark.parametrize(("command", "code"), [("validate", 2), ("run", 2), ("preview", 1)])
def test_a_server_that_is_away_is_one_line_and_nothing_is_written(
    penstock: Callable[..., Any], tmp_path: Path, command: str, code: int
) -> None:
    file = tmp_path / "away.toml"
    file.write_text(TEXT.format(place=tmp_path, url="redis://127.0.0.1:1"))
    result = penstock(command, file)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "cannot connect to Redis at 127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "table").exists()


def test_a_reset_needs_no_server(tmp_path: Path) -> None:
    file = tmp_path / "away.toml"
    file.write_text(TEXT.format(place=tmp_path, url="redis://127.0.0.1:1"))
    result = CliRunner().invoke(app, ["pipeline", "reset", str(file), "--from", "latest", "--yes"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "orders: The pipeline has committed no batch. Its next run starts over from latest\n"
    assert json.loads((tmp_path / "checkpoint" / "start.json").read_text()) == {"startingOffsets": "latest"}


def test_a_wrong_key_ends_with_two_before_spark_starts(file: Path) -> None:
    file.write_text(file.read_text().replace("schema =", "shema ="))
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", "run", str(file)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"penstock: {file}:6: [source] shema is unknown: did you mean 'schema'? ")


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("sc://127.0.0.1:1", "--master sc://127.0.0.1:1: cannot reach a Spark Connect server ("),
        ("spark:/host:7077", "--master 'spark:/host:7077' must be local[4], spark://host:7077,"),
    ],
)
def test_a_master_that_cannot_be_is_told_before_spark_starts(file: Path, master: str, told: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", "validate", str(file), "--master", master])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"penstock: {told}")


@pytest.mark.slow
def test_a_preview_and_a_reset_say_what_they_do(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, table: Callable[..., list[Any]]
) -> None:
    add_orders(stream_redis, 3)
    result = penstock("preview", file, "-n", 2)
    assert result.stdout.split() == ["n", "0", "1"]
    assert result.stderr.endswith("orders: 2 entries\nparquet:\n")  # after what it waited for
    rows = [json.loads(line) for line in penstock("preview", file, "--json").stdout.splitlines()]
    assert rows == [{"sink": "parquet", "row": {"n": n}} for n in range(3)]
    check("pipeline preview", rows)
    penstock("run", file)
    dry = penstock("reset", file, "--from", "earliest", "--dry-run", "--json")
    assert json.loads(dry.stdout)["starting"] == {"startingOffsets": "earliest"}
    check("pipeline reset", [json.loads(dry.stdout)])
    assert json.loads(penstock("status", file, "--json").stdout)["committed_batch"] == 0
    result = penstock("reset", file, "--from", "earliest", "--yes")
    assert result.stderr == ("orders: The pipeline has committed batch 0. Its next run starts over from earliest\n")
    check("pipeline run", map(json.loads, penstock("run", file, "--json").stdout.splitlines()))
    assert table() == [0, 0, 1, 1, 2, 2]
    assert penstock("reset", file, "--from", "noon", "--yes").exit_code == 2


@pytest.mark.slow
def test_several_files_run_in_one_session_and_one_that_fails_stops_no_other(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, table: Callable[..., list[Any]], tmp_path: Path
) -> None:
    add_orders(stream_redis, 5)
    other, broken = tmp_path / "other.toml", tmp_path / "broken.toml"
    text = file.read_text()
    other.write_text(
        text.replace('"orders"\ncheck', '"other"\ncheck').replace("/checkpoint", "/c2").replace("/table", "/t2")
    )
    bad = text.replace('"orders"\ncheck', '"broken"\ncheck').replace("/checkpoint", "/c3").replace("/table", "/t3")
    broken.write_text(bad.replace("SELECT n", "SELECT CAST(raise_error('the sky fell') AS bigint) AS n"))
    result = penstock("run", file, other, broken)
    assert result.exit_code == 1
    assert "other: done after 1 batches, 5 rows" in result.stderr
    assert "the sky fell" in result.stderr.splitlines()[-1]
    assert "broken: pipeline 'broken' failed: " in result.stderr
    assert (table(), table("n", "t2")) == (list(range(5)), list(range(5)))
    assert "'other' is valid" in penstock("validate", file, other).stdout
    assert len(penstock("status", file, other, "--json").stdout.splitlines()) == 2
    assert penstock("run", file, file).stderr.startswith("penstock: two pipelines have the name 'orders'")


def test_of_several_files_one_that_fails_says_so_while_the_others_run_on(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(file.read_text().replace('"orders"\ncheck', '"other"\ncheck').replace("/checkpoint", "/c2"))
    is_reported, said = threading.Event(), []

    def run_until_the_other_failed(self: Pipeline, spark: SparkSession, **_: Any) -> Report:
        if self.name == "orders":
            raise PipelineInvalid(("no such table", "no such column"))
        assert is_reported.wait(DEADLINE_S)
        return Report()

    def note(text: object, **_: Any) -> None:
        said.append(str(text))
        if len(said) == 2:
            is_reported.set()

    monkeypatch.setattr(Pipeline, "run", run_until_the_other_failed)
    monkeypatch.setattr(commands, "say", note)
    result = penstock("run", file, other, "--continuous")
    assert result.exit_code == 1
    assert said == ["orders: no such table", "orders: no such column", "other: done after 0 batches, 0 rows"]
    assert [line for line in result.stderr.splitlines() if line] == [
        "penstock: no such table", "penstock: no such column",
    ]  # fmt: skip


SLOW_PYTHON = """#!/bin/sh
# As on a busy machine: however many Pythons are started, one begins every two seconds.
exec 9>"{place}/turn"
flock 9
sleep 2
exec 9>&-
exec {python} "$@"
"""


@pytest.mark.slow
def test_many_pipelines_start_although_spark_gives_each_python_ten_seconds(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 5)
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON.format(place=tmp_path, python=sys.executable))
    python.chmod(0o700)
    files = []
    for number in range(8):
        made = file.read_text().replace('"orders"\ncheck', f'"p{number}"\ncheck')
        files.append(tmp_path / f"{number}.toml")
        files[-1].write_text(made.replace("/checkpoint", f"/c{number}").replace("/table", f"/t{number}"))
    command = [sys.executable, "-m", "penstock", "pipeline", "run", *map(str, files), "--master", "local[2]"]
    with Process(command, tmp_path, {"PYSPARK_PYTHON": str(python), **fast_start()}) as process:
        lines = process.end()
    assert {f"p{number}: done after 1 batches, 5 rows" for number in range(8)} <= {*lines}


def test_metrics_are_served_while_it_runs(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_orders(stream_redis, 5)
    served: list[str] = []

    def scrape(text: object) -> None:
        if str(text).startswith("serving metrics on port "):
            served.append(f"http://127.0.0.1:{str(text).rpartition(' ')[2]}/metrics")
        elif "batch 0" in str(text):
            served.append(urllib.request.urlopen(served[0], timeout=60).read().decode())

    monkeypatch.setattr(commands, "say", scrape)
    assert penstock("run", file, "--metrics-port", 0).exit_code == 0
    assert 'penstock_pipeline_rows_total{pipeline="orders"} 5.0' in served[1]


def test_a_profile_is_chosen_on_the_command_line(
    penstock: Callable[..., Any], file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 2)
    file.write_text(f'{file.read_text()}\n[profile.dev]\ncheckpoint = "{tmp_path}/dev"\n')
    assert penstock("run", file, "--profile", "dev").exit_code == 0
    assert (tmp_path / "dev").exists()
    assert not (tmp_path / "checkpoint").exists()
    result = penstock("run", file, "--profile", "prod")
    assert (result.exit_code, "did you mean" in result.stderr or "available: dev" in result.stderr) == (2, True)


@pytest.mark.slow
def test_functions_are_found_beside_the_file_and_where_the_command_is_run(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 3)
    place = tmp_path / "elsewhere"
    place.mkdir()
    for module, folder in (("beside", tmp_path), ("here", place)):
        text = f"def {module}(messages):\n    return {{m.id: {{{module!r}: 1.0}} for m in messages}}\n"
        (folder / f"{module}.py").write_text(text)
    steps = [f'[[step]]\nhandler = "{name}:{name}"\noutput = "{name} double"\n' for name in ("beside", "here")]
    file.write_text(file.read_text().replace("[[sink]]", f"{''.join(steps)}[[sink]]").replace("SELECT n ", "SELECT * "))
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--master", "local[1]"]
    with Process(command, place, fast_start()) as process:
        assert "orders: done after 1 batches, 3 rows" in process.end()
    assert stream_redis.exists("orders_dlq") == 0


@pytest.mark.slow
def test_sigterm_ends_a_continuous_run_after_its_batch(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--continuous", "--master", "local[1]"]
    with Process(command, tmp_path, {"PYTHONPATH": PYTHONPATH, **fast_start()}) as process:
        process.wait_for_line("batch 0: 10 rows")
        os.kill(process.pid, signal.SIGTERM)
        assert process.end()[-1] == "orders: stopped after 1 batches, 10 rows"
    assert list((tmp_path / "table").glob("batch=*/*.parquet"))
