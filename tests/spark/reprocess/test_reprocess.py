"""A handler over messages again: each has one result in the end, whatever is killed; failures are summed up."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import redis
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.redis.embedded import EmbeddedServer
from penstock.settings import ResultBackendSettings
from penstock.spark.reprocess.run import COLUMNS
from penstock.spark.reprocess.store import marked, must_stop, request_stop, result_id
from penstock.spark.reprocess.task import ReprocessTask, Work
from penstock.sync.results import FSBackend, PostgresBackend
from penstock.task import check_id
from tests.helpers.json_names import check
from tests.helpers.postgres import PostgresServer
from tests.spark.archive.streams import START_MS, Stream, archive, flip_a_bit_of_the_payload, opened
from tests.spark.driver import PYTHONPATH, Process
from tests.spark.reprocess.handlers import GATE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDLERS = "tests.spark.reprocess.handlers"


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["reprocess", *map(str, words)])


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """An archive of 80 orders."""
    stream = Stream()
    for n in range(80):
        payload = json.dumps({"n": n, "place": str(tmp_path)}).encode()
        stream.entries.append((f"{START_MS + n}-0", {"data": payload}))
    archive(opened(tmp_path / "cold"), stream, 0, 80)
    return tmp_path / "cold"


@pytest.mark.slow
def test_killed_and_run_again_each_message_has_one_result(
    java: Path, spark: SparkSession, cold: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    words = ["--stream", "orders", "--handler", f"{HANDLERS}:doubled", "--archive", str(cold), "--batch-size", "10"]
    words += ["--since", str(START_MS + 20), "--until", str(START_MS + 70), "--results", str(tmp_path / "results")]
    dry = call(*words, "--dry-run", "--where", "cast(data as string) like '%7,%'")
    assert dry.stdout == "5 messages\ndry run: nothing was handled, nothing was written\n"
    assert not (tmp_path / "results").exists()

    command = [sys.executable, "-m", "penstock", "reprocess", *words, "--master", "local[1]"]
    with Process(command, tmp_path, {"PYTHONPATH": PYTHONPATH}) as process:
        process.wait_for_line("^at the gate$")
        process.kill()
    assert "50 messages" in process.lines()
    (tmp_path / "gate").unlink()
    first = numbers(tmp_path / "results")
    assert first == dict.fromkeys(range(20, GATE), 1)
    (tmp_path / "journal").unlink()

    again = call(*words)
    assert again.exit_code == 0, again.output
    assert "done 45, failed 5; 20 of them already had a result" in again.stdout
    assert "failed 5: ValueError: order <n> has no price" in again.stdout
    assert "2 failed in an earlier run; use --name to start a new round" in again.stdout
    assert numbers(tmp_path / "results") == dict.fromkeys(range(20, 70), 1)
    assert min(map(int, (tmp_path / "journal").read_text().split())) == GATE


def numbers(root: Path) -> Counter[int]:
    """Returns the numbers that have results, and how many each."""
    with FSBackend(root) as backend:
        found = list(backend.iter())
    for result in found:
        if result.status == "ok":
            assert result.data["twice"] % 2 == 0
        else:
            assert result.error.startswith("ValueError: order ")
            assert result.attempts == 3
    good = [result.data["twice"] // 2 for result in found if result.status == "ok"]
    return Counter([*good, *(int(result.error.split()[2]) for result in found if result.status == "error")])


def test_a_task_handles_messages_in_order_and_returns_early_when_a_stop_is_requested(tmp_path: Path) -> None:
    results = ResultBackendSettings("fs", root=str(tmp_path / "results"))
    payloads = [json.dumps({"n": n, "place": str(tmp_path)}).encode() for n in range(0, 300, 10)]
    rows = [
        {**dict.fromkeys(COLUMNS), "stream": "orders", "id": f"{n + 1}-0", "data": payload}
        for n, payload in enumerate(payloads)
    ]
    with marked(results, is_here=False) as mark:
        assert mark is not None
        task = ReprocessTask(Work(f"{HANDLERS}:doubled", results, batch_size=10), True, mark=mark)
        outcomes = task(iter([pa.RecordBatch.from_pylist(rows)]))
        assert next(outcomes).num_rows == 10
        request_stop(mark)
        assert list(outcomes) == []
    assert (tmp_path / "journal").read_text().split() == [str(n * 10) for n in range(10)]
    request_stop(mark)  # too late, and without effect
    assert not Path(mark).exists()


def test_a_result_of_a_failed_message_has_the_traceback(tmp_path: Path) -> None:
    payload = json.dumps({"n": 7, "place": str(tmp_path)}).encode()
    row = {**dict.fromkeys(COLUMNS), "stream": "orders", "id": "1-0", "data": payload}
    results = ResultBackendSettings("fs", root=str(tmp_path / "results"))
    task = ReprocessTask(Work(f"{HANDLERS}:doubled", results), True)
    [outcome] = task(iter([pa.RecordBatch.from_pylist([row])]))
    assert outcome.num_rows == 1
    with FSBackend(tmp_path / "results") as backend:
        [result] = backend.iter()
    assert "in doubled\n" in str(result.traceback)
    assert str(result.traceback).endswith("ValueError: order 7 has no price\n")


def test_a_stop_reaches_tasks_on_this_machine_wherever_results_are_saved() -> None:
    results = ResultBackendSettings("s3")
    with marked(results, is_here=True) as mark:
        assert not must_stop(mark)
        request_stop(str(mark))
        assert must_stop(mark)
    with marked(results, is_here=False) as mark:
        assert mark is None
        assert not must_stop(mark)


@pytest.mark.rotates
def test_nothing_of_a_damaged_archive_is_handled(spark: SparkSession, cold: Path, tmp_path: Path) -> None:
    [file] = cold.glob("stream=*/day=*/*")
    flip_a_bit_of_the_payload(file)
    words = ("--stream", "orders", "--handler", f"{HANDLERS}:doubled", "--archive", cold, "--where", "seq >= 0")
    result = call(*words, "--results", tmp_path / "results")
    assert result.exit_code == 1
    assert f"{file} is damaged" in result.stderr
    assert not (tmp_path / "journal").exists()


def dead_letter(client: redis.Redis, n: int, reason: str, place: Path, **more: str) -> None:
    told = {"dlq_reason": reason, "dlq_source": "orders", "dlq_id": f"{START_MS + n}-0", "dlq_error": "KeyError"}
    client.xadd("orders_dlq", {"data": json.dumps({"n": n, "place": str(place)}), **told, **more})


def test_dead_letters_of_one_reason_are_handled_and_those_that_are_done_purged(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, postgres: PostgresServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Although a worker is killed meanwhile; those that fail again stay, and are all that the next run finds."""
    for n in range(30):
        dead_letter(stream_redis, n, "fatal" if n % 3 else "expired", tmp_path, message_id=f"m{n}", kind="pay")
    stream_redis.xadd("orders_dlq", {"data": b"\xff", "dlq_reason": "fatal", "dlq_source": "orders", "dlq_id": "1-1"})
    dead_letter(stream_redis, 1, "fatal", tmp_path, message_id="m1", kind="pay")  # another group gave it up as well
    words = ["--stream", "orders", "--handler", f"{HANDLERS}:fragile", "--dead-letters", "--reason", "fatal"]
    words += ["--url", stream_server.url, "--results", postgres.dsn, "--purge"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "killed").exists()
    assert "22 messages" in result.stderr
    assert "done 19, failed 3; 1 of them already had a result" in result.stdout
    assert "failed 2: ValueError: order <n> has no price" in result.stdout
    assert "failed 1: DecodeError" in result.stdout
    assert "purged 19 dead letters" in result.stdout
    with PostgresBackend(postgres.dsn) as backend:
        found = {result.task_id: result for result in backend.iter()}
    good = {f"m{n}" for n in range(30) if n % 3 and n % 10 != 7}
    assert set(found) == good
    assert {result.kind for result in found.values()} == {"pay"}
    left = Counter(fields[b"dlq_reason"] for _, fields in stream_redis.xrange("orders_dlq"))
    assert left == {b"expired": 10, b"fatal": 3}
    again = json.loads(call(*words, "--json").stdout)
    assert (again["done"], again["failed"], again["earlier"]) == (0, 3, 0)
    check("reprocess", [again])


@pytest.mark.rotates
@pytest.mark.parametrize("kept", ["dead letters", "an archive"])
def test_a_handler_that_hangs_costs_its_messages_and_not_the_others(
    kept: str, spark: SparkSession, cold: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    """Also in C code, where the worker must be ended and its task is repeated."""
    words: list[object] = ["--stream", "orders", "--handler", f"{HANDLERS}:stuck", "--timeout", "500ms"]
    words += ["--max-attempts", 2, "--results", tmp_path / "results"]
    if kept == "an archive":
        words += ["--archive", cold, "--until", START_MS + 8]
    else:
        words += ["--dead-letters", "--url", stream_server.url]
        for n in range(8):
            dead_letter(stream_redis, n, "fatal", tmp_path)
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "done 6, failed 2" in result.stdout
    assert "HandlerTimeout: handler exceeded its timeout of <n>" in result.stdout
    assert not [key for key in stream_redis.keys("*") if stream_redis.ttl(key) < 0 and key != b"orders_dlq"]
    with FSBackend(tmp_path / "results") as backend:
        found = Counter(str(result.status) for result in backend.iter())
    assert found == ({"ok": 6, "error": 2} if kept == "an archive" else {"ok": 6})


@pytest.mark.rotates
def test_a_handler_that_answers_nonsense_ends_the_run_with_one_line(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    dead_letter(stream_redis, 1, "fatal", tmp_path)
    words = ("--stream", "orders", "--dead-letters", "--url", stream_server.url, "--results", tmp_path / "results")
    result = call(*words, "--handler", f"{HANDLERS}:talkative")
    assert "must return a list of message ids, or a mapping of ids to results, not str" in result.stderr
    assert stream_redis.xlen("orders_dlq") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "choose one source: --archive PATH or --dead-letters"),
        (("--archive", "{cold}", "--dead-letters"), "choose one source: --archive PATH or --dead-letters"),
        (("--archive", "{cold}/none"), "there is no archive"),
        (("--archive", "{cold}", "--stream", "nobody"), "the archive has no stream 'nobody'"),
        (("--archive", "{cold}", "--since", "5", "--until", "4"), "must be before"),
        (("--archive", "{cold}", "--reason", "fatal"), "--reason applies only to --dead-letters"),
        (("--archive", "{cold}", "--purge"), "--purge applies only to --dead-letters"),
        (("--archive", "{cold}", "--payload", "xml"), "--payload 'xml'"),
        (("--archive", "{cold}", "--name", "a b"), "--name"),
        (("--archive", "{cold}", "--master", "lokal"), "--master 'lokal' must be local[4]"),
        (("--archive", "{cold}", "--master", "sc://127.0.0.1:1"), "cannot reach a Spark Connect server"),
        (("--archive", "{cold}", "--timeout", "0s"), "--timeout='0.0s' must be positive"),
        (("--archive", "{cold}", "--results", "mongo"), "mongo"),
        (
            ("--archive", "{cold}", "--results", "/dev/null/here"),
            "--results /dev/null/here: /dev/null is not a directory",
        ),
        (("--archive", "{cold}", "--results", "/proc/none/here"), "cannot write to /proc"),
        (("--archive", "{cold}", "--handler", "nothing"), "package.module:function"),
        (("--archive", "{cold}", "--handler", "no.such.module:f"), "cannot be imported here"),
        (("--archive", "{cold}", "--handler", f"{HANDLERS}:NOT_A_FUNCTION"), "not a function"),
        (("--dead-letters", "--url", "{url}"), "stream 'orders' has no dead letters"),
        (("--dead-letters", "--url", "{url}", "--reason", "fattal"), "--reason 'fattal' is not a reason"),
        (("--dead-letters", "--url", "{url}", "--since", "1"), "--since and --until apply only to --archive"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: tuple[str, ...], why: str, cold: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    given = [word.format(cold=cold, url=stream_server.url) for word in words]
    for name, value in (("--stream", "orders"), ("--handler", f"{HANDLERS}:doubled")):
        given = given if name in given else [*given, name, value]
    result = call(*given)
    assert result.exit_code == (
        3 if why.startswith(("there is no", "the archive has no", "stream 'orders' has no")) else 2
    ), result.output
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
    assert why in line
    assert [path.name for path in tmp_path.iterdir()] == ["cold"]
    assert not stream_redis.keys("*")


def test_a_condition_that_cannot_be_is_one_line_and_code_2(spark: SparkSession, cold: Path, tmp_path: Path) -> None:
    words = ("--stream", "orders", "--handler", f"{HANDLERS}:doubled", "--archive", cold, "--dry-run")
    for condition, why in (
        ("customer = 'x'", "`customer`"),
        ("cast(id as int) > 1", "cannot be cast"),
        ("uuid() > 'a'", "different messages each time"),
    ):
        result = call(*words, "--where", condition)
        assert result.exit_code == 2, result.output
        line = result.stderr.strip().splitlines()[-1]
        assert line.startswith("penstock: --where")
        assert why in line


@pytest.mark.parametrize("message_id", [None, "", "m-1", "a b", "x" * 128, "..", "ümlaut"])
@pytest.mark.parametrize("name", [None, "round-2"])
def test_results_have_ids_that_every_back_end_takes_and_that_differ(name: str | None, message_id: str | None) -> None:
    made = result_id(name, message_id, "orders", "1-1")
    check_id("task_id", made)
    assert made == result_id(name, message_id, "orders", "1-1")
    assert made.startswith("" if name is None else "round-2.")
    others = {
        result_id(name, message_id and f"{message_id}!", "orders", "1-2"),
        result_id("other", message_id, "s", "1-1"),
    }
    assert made not in others
    if message_id == "m-1":
        assert made == ("m-1" if name is None else "round-2.m-1")
