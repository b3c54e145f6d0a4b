"""SIGINT and SIGTERM to the commands on Spark, as real processes get them: alone, and as a terminal sends Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.status import status
from tests.helpers.processes import listed
from tests.helpers.threads import eventually, throughout
from tests.spark.archive.streams import START_MS, Stream, archive, opened
from tests.spark.clusters import fast_start
from tests.spark.driver import PATIENCE_S, PYTHONPATH, Process
from tests.spark.end_to_end.queries import fill
from tests.spark.pipeline.conftest import add_orders
from tests.spark.pipeline.test_cli import TEXT
from tests.spark.reprocess.handlers import GATE

Send = Callable[[int], None]
MANY = 1_000  # at 20 a second, a replay is in the middle for most of a minute


def ctrl_c(pid: int) -> None:
    os.killpg(pid, signal.SIGINT)


def sigint(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def sigterm(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


any_signal = pytest.mark.parametrize("send", [ctrl_c, sigint, sigterm])
either_signal = pytest.mark.parametrize("send", [ctrl_c, sigterm])


@pytest.fixture
def file(stream_server: EmbeddedServer, tmp_path: Path) -> Path:
    made = tmp_path / "orders.toml"
    made.write_text(TEXT.format(place=tmp_path, url=stream_server.url))
    return made


def started(place: Path, *words: object) -> Process:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    return Process(command, place, {"PYTHONPATH": PYTHONPATH, "COLUMNS": "200", **fast_start()})


def children(pid: int) -> set[str]:
    """Returns the names of the programs that a process has started and that run."""
    return {Path(process.command.partition(" ")[0]).name for process in listed() if process.parent == pid}


def written(place: Path) -> bool:
    return any((place / "table").glob("batch=*/*.parquet"))


@pytest.mark.slow
@any_signal
def test_a_pipeline_ends_after_its_batch_without_a_word(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path, send: Send
) -> None:
    add_orders(stream_redis, 10)
    with started(tmp_path, "pipeline", "run", file, "--continuous", "--master", "local[1]", "-q") as process:
        eventually(lambda: written(tmp_path), PATIENCE_S)
        send(process.pid)
        lines = process.end()
    assert [line for line in lines if "JAVA_TOOL_OPTIONS" not in line] == []
    driver = status(Pipeline.from_file(file)).driver
    assert driver is not None
    assert driver.state == "stopped"


@pytest.mark.slow
def test_a_signal_while_spark_starts_ends_it_at_once(java: Path, file: Path, tmp_path: Path) -> None:
    with started(tmp_path, "pipeline", "run", file, "--master", "local[1]") as process:
        process.wait_for_line("^starting Spark on local")
        eventually(lambda: "java" in children(process.pid), PATIENCE_S)
        ctrl_c(process.pid)
        assert process.end() == ["starting Spark on local[1] ...", "orders: stopped"]
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_what_spark_says_of_its_start_is_not_shown(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    with started(tmp_path, "pipeline", "run", file, "--master", "local[1]") as process:
        lines = process.end()
    assert lines[0] == "starting Spark on local[1] ..."
    assert lines[1].startswith("batch 0: 10 rows")
    assert lines[2:] == ["orders: done after 1 batches, 10 rows"]


@pytest.mark.slow
def test_a_second_signal_ends_it_in_the_midst_of_a_batch(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    slow = "SELECT n, java_method('java.lang.Thread', 'sleep', 600000L) AS slept FROM input"
    file.write_text(file.read_text().replace("SELECT n FROM input", slow))
    with started(tmp_path, "pipeline", "run", file, "--master", "local[1]", "-q") as process:
        eventually((tmp_path / "checkpoint" / "spark" / "offsets" / "0").exists, PATIENCE_S)
        ctrl_c(process.pid)
        throughout(2.0, process.is_alive)  # it lets the batch end, and says nothing of the first signal
        ctrl_c(process.pid)
        assert process.code() == 130


@pytest.mark.slow
@pytest.mark.needs_limits
@pytest.mark.parametrize(
    "how", [("--continuous", "--every", "1s"), ("--max-batch-rows", "10")], ids=["waiting", "busy"]
)
def test_an_archive_ends_after_its_batch(
    java: Path, stream_redis: redis.Redis, stream_server: EmbeddedServer, tmp_path: Path, how: tuple[str, ...]
) -> None:
    fill(stream_redis, "orders", 1_000)
    words = ["--archive", tmp_path / "cold", "--stream", "orders", "--url", stream_server.url, "--master", "local[1]"]
    with started(tmp_path, "archive", "run", *how, *words, "--json") as process:
        process.wait_for_line("^batch 0: 1(,00)?0 entries")
        ctrl_c(process.pid)
        lines = process.end()
    rows = json.loads(lines[-1])["rows"]
    assert rows % 10 == 0
    assert (rows == 1_000) == ("--continuous" in how)
    assert all(line.startswith(("batch ", "starting Spark")) for line in lines[:-1]), lines


@either_signal
def test_a_replay_ends_after_what_it_is_writing_and_goes_on_when_it_is_started_again(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path, send: Send
) -> None:
    stream = Stream()
    stream.add(MANY)
    archive(opened(tmp_path / "cold"), stream, 0, MANY)
    words = ["--archive", tmp_path / "cold", "--stream", "orders", "--into", "again", "--url", stream_server.url]
    with started(tmp_path, "replay", *words, "--rate", "20") as process:
        eventually(lambda: stream_redis.xlen("again") >= 5)
        send(process.pid)
        lines = process.end()
    done = stream_redis.xlen("again")
    assert 5 <= done < MANY
    assert lines[-2:] == [
        "replay: stopped; run the same command again to continue",
        f"wrote {done} messages; 0 were already there",
    ]
    with started(tmp_path, "replay", *words) as process:
        assert process.end()[-1] == f"wrote {MANY - done} messages; {done} were already there"
    assert stream_redis.xlen("again") == MANY


@pytest.mark.slow
def test_a_second_signal_ends_a_replay_whose_server_does_not_answer(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    stream = Stream()
    stream.add(60)
    archive(opened(tmp_path / "cold"), stream, 0, 60)
    words = ["--archive", tmp_path / "cold", "--stream", "orders", "--into", "again", "--url", stream_server.url]
    with started(tmp_path, "replay", *words, "--rate", "20") as process:
        eventually(lambda: stream_redis.xlen("again") >= 5)
        stream_redis.client_pause(int(PATIENCE_S * 1000), all=False)  # writes alone
        try:
            eventually(lambda: any("b" in client["flags"] for client in stream_redis.client_list()))  # a blocked one
            ctrl_c(process.pid)
            throughout(2.0, process.is_alive)
            ctrl_c(process.pid)
            assert process.code() == 130
        finally:
            stream_redis.client_unpause()


@pytest.fixture
def reprocessing(tmp_path: Path) -> list[object]:
    """The command that reprocesses 80 messages, one of which waits at a gate."""
    os.mkfifo(tmp_path / "gate")
    stream = Stream()
    for n in range(80):
        payload = json.dumps({"n": n, "place": str(tmp_path)}).encode()
        stream.entries.append((f"{START_MS + n}-0", {"data": payload}))
    archive(opened(tmp_path / "cold"), stream, 0, 80)
    words: list[object] = ["reprocess", "--stream", "orders", "--handler", "tests.spark.reprocess.handlers:doubled"]
    words += ["--archive", tmp_path / "cold", "--batch-size", 10, "--results", tmp_path / "results"]
    return [*words, "--master", "local[1]"]


@pytest.mark.slow
def test_a_second_signal_ends_a_reprocessing_in_the_midst_of_a_message(
    java: Path, tmp_path: Path, reprocessing: list[object]
) -> None:
    with started(tmp_path, *reprocessing) as process:
        process.wait_for_line("^at the gate$")
        ctrl_c(process.pid)
        throughout(2.0, process.is_alive)
        ctrl_c(process.pid)
        assert process.code() == 130


@pytest.mark.slow
@either_signal
def test_a_reprocessing_finishes_the_messages_that_it_is_handling(
    java: Path, tmp_path: Path, reprocessing: list[object], send: Send
) -> None:
    with started(tmp_path, *reprocessing) as process:
        process.wait_for_line("^at the gate$")
        send(process.pid)
        # Nothing shows that it has noticed the signal, except that it would end, or say that it has stopped.
        throughout(8.0, lambda: process.is_alive() and not process.lines()[-1].startswith("reprocess: "))
        process.open_gate(tmp_path / "gate")
        lines = process.end()
    assert (
        lines[-1] == "reprocess: stopped; run the same command again to continue with the messages that have no result"
    )
    assert not [line for line in lines if "py4j" in line or "SparkException" in line or "KeyboardInterrupt" in line]
    handled = GATE + 10
    first = (tmp_path / "journal").read_text().split()
    assert {int(n) for n in first} == set(range(handled))
    with started(tmp_path, *reprocessing) as process:
        assert f"done 72, failed 8; {handled} of them already had a result" in process.end()
    again = (tmp_path / "journal").read_text().split()[len(first) :]
    assert {int(n) for n in again} == set(range(handled, 80))
    assert not list((tmp_path / "results").glob(".penstock-*"))


@pytest.mark.slow
@either_signal
def test_a_report_is_not_written(
    java: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path, send: Send
) -> None:
    fill(stream_redis, "orders", 10)
    with started(tmp_path, "report", "--stream", "orders", "--url", stream_server.url) as process:
        process.wait_for_line("^reading ")
        send(process.pid)
        lines = process.end()
    assert lines[-1] == "report: stopped"
    assert not list(tmp_path.glob("*.html"))
