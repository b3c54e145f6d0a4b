"""The commands: what they print, and the codes that they end with."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import redis
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner, Result

from penstock.cli import archive as cli_of_archive
from penstock.cli.app import app
from penstock.cli.stopping import Stopping, stopping
from penstock.errors import ConnectionFailed, PenstockError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import ArchiveRun
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.lake.files import Location, StoreFailed
from tests.helpers.json_names import check
from tests.helpers.threads import eventually
from tests.spark.archive.streams import START_MS, Stream, archive, archived, opened
from tests.spark.clusters import fast_start
from tests.spark.driver import PYTHONPATH, Process
from tests.spark.end_to_end.queries import fill, numbers, payloads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def root(tmp_path: Path) -> Path:
    stream = Stream()
    stream.add(60)
    archiver = opened(tmp_path / "cold")
    for start in range(0, 60, 20):
        archive(archiver, stream, start, start + 20)
    return tmp_path / "cold"


def call(*words: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env=env)


def test_a_replay_that_is_killed_goes_on_where_it_was(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    root, many = tmp_path / "cold", 1_000  # at 20 a second, it is in the middle for most of a minute
    stream = Stream()
    stream.add(many)
    archive(opened(root), stream, 0, many)
    words = ["replay", "--archive", str(root), "--stream", "orders", "--into", "again", "--url", stream_server.url]
    command = [sys.executable, "-m", "penstock", *words, "--rate", "20"]
    with Process(command, tmp_path, {"PYTHONPATH": PYTHONPATH}) as process:
        eventually(lambda: stream_redis.xlen("again") >= 5)
        process.kill()
    done = stream_redis.xlen("again")
    assert 5 <= done < many
    assert f"wrote {many - done} messages; {done} were already there" in call(*words).stdout
    assert payloads(stream_redis, "again") == numbers(many)
    origins = [json.loads(fields[b"headers"])["replay_of"] for _, fields in stream_redis.xrange("again")]
    assert origins == [f"orders/{entry_id}" for entry_id, _ in archived(root)]


@pytest.mark.slow
@pytest.mark.needs_limits
def test_archive_run_copies_what_comes_and_ends_in_order_when_it_is_told_to(
    java: Path, stream_redis: redis.Redis, stream_server: EmbeddedServer, tmp_path: Path
) -> None:
    fill(stream_redis, "orders", 250)
    command = [sys.executable, "-m", "penstock", "archive", "run", "--continuous", "--every", "1 second"]
    command += ["--master", "local[2]"]
    words = ["--archive", str(tmp_path / "cold"), "--stream", "orders", "--url", stream_server.url]
    with Process([*command, *words], tmp_path, {"PYTHONPATH": PYTHONPATH, "COLUMNS": "200", **fast_start()}) as process:
        process.wait_for_line("batch 0: 250 entries")
        os.kill(process.pid, signal.SIGTERM)
        lines = process.end()
    assert any("orders" in line and "250" in line for line in lines), lines
    stream = json.loads(call("archive", "status", "--archive", tmp_path / "cold", "--json").stdout)
    assert (stream["stream"], stream["rows"]) == ("orders", 250)
    assert call("archive", "verify", "--archive", tmp_path / "cold", "--rows").exit_code == 0


class _Gone:
    """A query whose Java ends, after a signal or without one."""

    def __init__(self, number: signal.Signals | None) -> None:
        self._number = number

    def awaitTermination(self, _: int) -> bool:  # noqa: N802
        if self._number is not None:
            os.kill(os.getpid(), self._number)
        raise ConnectionRefusedError


def test_java_may_end_before_us_when_all_processes_are_told_to_stop() -> None:
    with stopping("archive") as stop:
        with pytest.raises(PenstockError, match="Java process of Spark ended"):
            cli_of_archive._wait_for_end(_Gone(None), stop)
        cli_of_archive._wait_for_end(_Gone(signal.SIGTERM), stop)
        assert stop.is_requested


class _Failing:
    """A query that ends as it is told to: with an error of Spark, or well."""

    def __init__(self, failure: str | None) -> None:
        self._failure = failure

    def awaitTermination(self, _: int) -> bool:  # noqa: N802
        if self._failure is not None:
            raise StreamingQueryException(f"Traceback (most recent call last):\n{self._failure}")
        return True


_PASSES, _STAYS = "penstock.spark.lake.files.StoreFailed: 503 Slow Down", "penstock.errors.DataLost: 3 entries are lost"


@pytest.mark.needs_limits
@pytest.mark.parametrize(
    ("way", "failures", "starts", "code"),
    [
        ("--continuous", [_PASSES, ConnectionFailed("away"), _PASSES, None], 4, 0),
        ("--continuous", [_PASSES, _STAYS], 2, 1),
        ("--continuous", [_PASSES] * 20, 11, 1),
        ("--once", [_PASSES], 1, 1),
    ],
)
def test_a_continuous_run_starts_again_after_a_failure_that_passes(
    way: str,
    failures: list[str | PenstockError | None],
    starts: int,
    code: int,
    root: Path,
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(stream_redis, "orders", 1)
    monkeypatch.setattr("penstock.spark.runtime.restarts._LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(cli_of_archive, "quiet_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    left = iter(failures)
    started: list[object] = []

    def start(*_: object, once: bool) -> _Failing:
        started.append(once)
        failure = next(left)
        if isinstance(failure, PenstockError):
            raise failure
        return _Failing(failure)

    monkeypatch.setattr(ArchiveRun, "start", start)
    result = call("archive", "run", way, "--stream", "orders", "--url", stream_server.url, "--archive", root)
    assert (len(started), result.exit_code) == (starts, code), result.output


@pytest.mark.needs_limits
def test_a_run_that_is_asked_to_stop_while_it_starts_ends_well(
    root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream_redis, "orders", 1)
    monkeypatch.setattr(cli_of_archive, "quiet_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))

    def start(job: ArchiveRun, *_: object, once: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        # The server is away, for longer than anybody would wait.
        replace(job, options={"url": "redis://127.0.0.1:1", "retryTimeout": "1h"}).check()

    monkeypatch.setattr(ArchiveRun, "start", start)
    words = ["--continuous", "--stream", "orders", "--url", stream_server.url, "--archive", root]
    result = call("archive", "run", *words)
    assert result.exit_code == 0, result.output
    assert "stopped before" in result.output


@pytest.mark.slow
@pytest.mark.needs_limits
def test_a_run_that_a_store_has_failed_starts_again_in_its_session_and_archives_each_entry_once(
    spark: SparkSession,
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(stream_redis, "orders", 50)
    monkeypatch.setattr("penstock.spark.runtime.restarts._LONGEST_PAUSE_S", 0.0)
    stop, failures = Stopping(), iter(["checked", "placed"])
    fails_at = next(failures)

    def step(name: str) -> None:
        nonlocal fails_at
        if name == fails_at:
            fails_at = next(failures, "")
            raise StoreFailed("503 Slow Down")
        stop.is_requested = name == "committed"

    job = ArchiveRun(tmp_path / "cold", "orders", {"url": stream_server.url}, trigger="1 second", step=step)
    cli_of_archive._archive(job, spark, stop, once=False)
    assert [fields["data"] for _, fields in archived(tmp_path / "cold")] == [b"%d" % n for n in range(50)]
    assert call("archive", "verify", "--archive", tmp_path / "cold", "--rows").exit_code == 0


_HOLD = """
import signal, sys
from penstock.spark.archive import ArchiveRun
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.lake.files import Location

ArchiveLock.take(Location.of(sys.argv[1]))
print("held", flush=True)
signal.pause()
"""


def test_a_second_run_of_a_root_is_refused_before_it_touches_anything(
    root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    fill(stream_redis, "orders", 1)
    before = sorted(root.rglob("*"))
    with Process([sys.executable, "-c", _HOLD, str(root)], tmp_path, {"PYTHONPATH": PYTHONPATH}) as other:
        other.wait_for_line("held")
        result = call("archive", "run", "--stream", "orders", "--url", stream_server.url, "--archive", root)
        assert result.exit_code == 1
        assert "another run is archiving to" in result.stderr
        other.kill()
    assert sorted(root.rglob("*")) == sorted([root / "_lock", *before])
    ArchiveLock.take(Location.of(root)).give_back()  # it went with the process


@pytest.mark.needs_limits
def test_a_run_that_finds_no_stream_has_archived_nothing_and_ends_well(
    spark: SparkSession, stream_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # the command joins the session of the tests
    monkeypatch.setattr("penstock.cli.archive._wait_for_end", lambda query, _: query.awaitTermination())
    words = ("--stream", "no:*", "--url", stream_server.url, "--archive", tmp_path / "cold", "--once")
    result = call("archive", "run", *words)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing is archived yet: no stream 'no:*' with entries was found\n" in result.stderr


def test_a_run_on_spark_4_1_is_refused_in_one_line_before_it_touches_anything(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream_redis, "orders", 1)
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    words = ("--stream", "orders", "--url", stream_server.url, "--archive", tmp_path / "cold", "--once")
    result = call("archive", "run", *words)
    assert result.exit_code == 2, result.output
    [line] = result.stderr.strip().splitlines()
    assert "archiving needs Spark 4.2 or newer" in line
    assert list(tmp_path.iterdir()) == []


def test_verify_prints_what_and_where_and_ends_with_3(root: Path) -> None:
    sound = call("archive", "verify", "--archive", root)
    assert (sound.exit_code, sound.stdout) == (0, "sound: 3 commits, 3 files, 60 entries\n")
    victim = sorted(root.glob("stream=*/day=*/*"))[1]
    victim.unlink()
    found = call("archive", "verify", "--archive", root)
    assert found.exit_code == 3
    assert f"missing file: {victim}" in found.stdout
    assert json.loads(call("archive", "verify", "--archive", root, "--json").stdout)["is_sound"] is False


def test_an_archive_that_cannot_be_written_is_told_before_anything_is_done(
    root: Path, monkeypatch: pytest.MonkeyPatch, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    def refuse(**_: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    fill(stream_redis, "orders", 1)
    before = sorted(root.rglob("*"))
    monkeypatch.setattr("penstock.spark.lake.files.tempfile.mkdtemp", refuse)
    run = ("run", "--stream", "orders", "--url", stream_server.url)
    for words in (run, ("compact",)):
        result = call("archive", *words, "--archive", root)
        assert result.exit_code == 2, result.output
        [line] = result.stderr.strip().splitlines()
        assert "cannot write to" in line
        assert "Read-only file system" in line
    assert sorted(root.rglob("*")) == before


def test_compact_and_status(root: Path) -> None:
    done = call("archive", "compact", "--archive", root, "--keep-replaced", "0s")
    assert done.stdout == "merged 3 files into 1; removed 3 replaced files\n"
    assert "orders" in call("archive", "status", "--archive", root).stdout
    for command in ("archive compact", "archive status", "archive verify"):
        check(command, [json.loads(call(*command.split(), "--archive", root, "--json").stdout)])


def test_replay_counts_first_then_writes_then_has_nothing_to_do(
    root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    words = ("replay", "--archive", root, "--stream", "orders", "--into", "again", "--url", stream_server.url)
    times = ("--since", START_MS + 10, "--until", START_MS + 40)
    dry = call(*words, *times, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "30 messages for stream 'again'" in dry.stderr
    assert "nothing was written" in dry.stdout
    assert not stream_redis.keys("*")
    written = call(*words, *times, env={"FORCE_COLOR": "1", "COLUMNS": "80"})  # as on a terminal
    assert "wrote 30 messages; 0 were already there" in written.stdout
    assert "30/30" in written.stderr  # the bar
    again = call(*words, *times)
    assert "30 of them were written by an earlier run" in again.stderr
    assert "wrote 0 messages; 30 were already there" in again.stdout
    assert stream_redis.xlen("again") == 30
    told = json.loads(call(*words, *times, "--json").stdout)
    assert told == {**json.loads(call(*words, *times, "--dry-run", "--json").stdout), "is_dry_run": False}
    check("replay", [told])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--archive", "{root}", "--stream", "nobody"), "the archive has no stream 'nobody'"),
        (("--archive", "{root}"), "--stream NAME"),
        (("--archive", "{root}/nowhere", "--stream", "orders"), "there is no archive"),
        (("--archive", "{root}", "--stream", "orders", "--since", "5", "--until", "4"), "must be before"),
        (("--archive", "{root}", "--stream", "orders", "--dead-letters"), "choose one source: --archive"),
        (("--dead-letters", "--stream", "orders"), "no dead letters"),
        (("--file", "{root}/nothing.jsonl"), "nothing.jsonl: No such file"),
        (("--file", "{root}"), ": Is a directory"),
        (("--file", "a" * 300), ": File name too long"),
        (("--archive", "a" * 300, "--stream", "orders"), "too long"),
        (("--file", "{root}/_delta_log/00000000000000000001.json", "--since", "9", "--until", "8"), "must be before"),
        (("--file", "{root}/_delta_log/00000000000000000001.json"), "line 1"),
        (("--archive", "{root}", "--stream", "orders", "--name", ""), "--name"),
    ],
)
def test_bad_input_of_replay_is_one_line_and_writes_nothing(
    words: tuple[str, ...], why: str, root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    given = [word.format(root=root) for word in words]
    result = call("replay", "--into", "again", "--url", stream_server.url, *given)
    assert result.exit_code == (3 if why.startswith(("there is no", "the archive has no", "no dead letters")) else 2), (
        result.output
    )
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
    assert why in line
    assert not stream_redis.keys("*")


def test_a_condition_that_cannot_be_is_one_line_and_code_2_and_writes_nothing(
    root: Path, spark: object, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    words = ("replay", "--archive", root, "--stream", "orders", "--into", "again", "--url", stream_server.url)
    for condition, why in (
        ("customer = 'x'", "`customer`"),
        ("data ==== 1", "syntax error"),
        ("1 + 1", "BOOLEAN"),
        ("rand() < 0.5", "different messages each time"),
        ("timestamp < now() - interval 1 hour", "remove now()"),
        ("exists(select * from nowhere)", "nowhere"),
        ("cast(id as int) > 5", "CAST_INVALID_INPUT"),  # seen when rows are looked at: no id is a number
    ):
        result = call(*words, "--where", condition)
        assert result.exit_code == 2, result.output
        *of_spark, line = result.stderr.strip().splitlines()  # Spark may have said something when it started
        assert not any(told.startswith(("penstock: ", "{", "Traceback")) for told in of_spark)
        assert line.startswith("penstock: --where")
        assert why.lower() in line.lower()
        assert "LocalRelation" not in line  # no plan of Spark
        assert not stream_redis.keys("*")
    times = ("--since", START_MS + 5, "--until", START_MS + 40, "--rate", 1000)
    dry = call(*words, *times, "--where", "cast(data as string) like '%7'", "--dry-run")
    assert "4 messages for stream 'again'" in dry.stderr  # 7, 17, 27 and 37
    assert not stream_redis.keys("*")
    assert "wrote 4 messages" in call(*words, *times, "--where", "cast(data as string) like '%7'").stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("run", "--archive", "/proc/cold", "--stream", "orders"), "cannot write to"),
        (("run", "--archive", "{root}", "--stream", "nobody"), "stream 'nobody' does not exist"),
        (("run", "--archive", "{root}", "--stream", " "), "option streams"),
        (("run", "--archive", "{root}/co[l]d", "--stream", "orders"), "as a pattern"),
        (("run", "--archive", "{root}/co%20ld", "--stream", "orders"), "as an escaped character"),
        (("run", "--archive", "{root}", "--stream", "text"), "WRONGTYPE"),
        (("run", "--archive", "{root}", "--stream", "orders", "--master", "lokal[2]"), "--master 'lokal[2]' must be"),
        (
            ("run", "--archive", "{root}", "--stream", "orders", "--master", "sc://host"),
            "does not support Spark Connect",
        ),
        (("status", "--archive", "{root}/nowhere"), "there is no archive"),
        (("verify", "--archive", "{root}/nowhere"), "there is no archive"),
        (("compact", "--archive", "{root}/nowhere"), "there is no archive"),
        (("status", "--archive", "ftp://host/cold"), "ftp://host/cold cannot hold a table"),
        (("run", "--archive", "ftp://host/cold", "--stream", "orders"), "ftp://host/cold cannot hold a table"),
    ],
)
def test_bad_input_of_archive_is_one_line(
    words: tuple[str, ...], why: str, root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    stream_redis.set("text", "no stream")
    given = [word.format(root=root) for word in words]
    url = ["--url", stream_server.url] if given[0] == "run" else []
    result = call("archive", *given, *url)
    assert result.exit_code == (3 if why.startswith(("there is no", "stream 'nobody'")) else 2), result.output
    [line] = result.stderr.strip().splitlines()
    assert why in line
