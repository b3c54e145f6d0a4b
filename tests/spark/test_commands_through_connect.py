"""What the commands do besides pipelines, as clients of a real Spark Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import redis
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.redis.embedded import EmbeddedServer
from penstock.sync.results import FSBackend
from tests.spark.archive.streams import START_MS, Stream, archive, opened
from tests.spark.clusters import ConnectServer
from tests.spark.driver import PYTHONPATH
from tests.spark.report.pages import Page

Penstock = Callable[..., CompletedProcess[str]]


@pytest.fixture
def penstock(connect_server: ConnectServer, stream_server: EmbeddedServer, tmp_path: Path) -> Penstock:
    """Runs a command in a process of its own: it may have one kind of Spark session."""

    def run(*words: object) -> CompletedProcess[str]:
        places = ["--master", connect_server.url, "--url", stream_server.url]
        command = [sys.executable, "-m", "penstock", *map(str, words), *places]
        env = {**os.environ, "PYTHONPATH": PYTHONPATH}
        return subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, check=False)

    return run


@pytest.mark.slow
def test_a_handler_runs_again_over_an_archive_and_over_dead_letters(
    penstock: Penstock, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    stream = Stream()
    for n in range(30):
        stream.entries.append((f"{START_MS + n}-0", {"data": json.dumps({"n": n, "place": str(tmp_path)}).encode()}))
    archive(opened(tmp_path / "cold"), stream, 0, 30)
    words = ("reprocess", "--stream", "orders", "--handler", "tests.spark.reprocess.handlers:doubled")
    words += ("--results", str(tmp_path / "results"))
    done = penstock(*words, "--archive", tmp_path / "cold", "--where", "ms % 2 = 0")
    assert done.returncode == 0, done.stderr
    assert "15 messages" in done.stderr
    assert "done 15, failed 0; 0 of them already had a result" in done.stdout
    for n in range(30, 34):
        told = {"dlq_reason": "fatal", "dlq_source": "orders", "dlq_id": f"{START_MS + n}-0"}
        stream_redis.xadd("orders_dlq", {"data": json.dumps({"n": n, "place": str(tmp_path)}), **told})
    done = penstock(*words, "--dead-letters", "--purge")
    assert done.returncode == 0, done.stderr
    assert "done 4, failed 0; 0 of them already had a result\npurged 4 dead letters" in done.stdout
    with FSBackend(tmp_path / "results") as backend:
        assert sorted(result.data["twice"] for result in backend.iter()) == [*range(0, 60, 4), 60, 62, 64, 66]


@pytest.mark.slow
def test_a_report_is_made_and_an_archive_refused(penstock: Penstock, stream_redis: redis.Redis, tmp_path: Path) -> None:
    for n in range(7):
        stream_redis.xadd("orders", {"data": json.dumps({"n": n})})
    out = tmp_path / "page.html"
    made = penstock("report", "--stream", "orders", "--since", "2h", "--output", out)
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{out}: 7 messages, 0 dead letters\n"
    assert Page(out.read_text()).tiles["Messages"] == "7"
    refused = penstock("archive", "run", "--archive", tmp_path / "cold", "--stream", "orders", "--once")
    assert refused.returncode == 2
    assert "this command does not support Spark Connect" in refused.stderr
    assert not (tmp_path / "cold").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "run", "--archive", "cold", "--stream", "orders"),
        ("report", "--stream", "orders"),
        ("reprocess", "--stream", "orders", "--handler", "a:b", "--dead-letters"),
    ],
)
@pytest.mark.parametrize("master", ["spark:/host:7077", "sc://127.0.0.1:1"])
def test_a_master_that_cannot_be_is_told_before_anything_else(words: tuple[str, ...], master: str) -> None:
    result = CliRunner().invoke(app, [*words, "--url", "redis://127.0.0.1:1", "--master", master])
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock: --master ")
    assert result.stderr.count("\n") == 1
