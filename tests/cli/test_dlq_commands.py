"""`penstock queue dlq`: list, inspect, retry, purge, export."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from penstock.cli import dlq
from penstock.cli.dlq_export import harmless
from penstock.serializers import MsgpackSerializer
from penstock.sync.ops import dead_letters
from penstock.sync.ops.dead_letters import DeadLetterStreams
from penstock.sync.tasks import RedisTaskQueue, Result, Task
from penstock.testing.task_queue_contract import in_first_run
from tests.cli.conftest import Command

pytestmark = pytest.mark.every_server
GiveUp = Callable[..., Task]
AsJson = Callable[..., Any]


def test_dead_letters_are_listed_and_filtered(penstock: Command, as_rows: AsJson, dead_letter: GiveUp) -> None:
    assert penstock("queue", "dlq", "list").stderr == "No dead letters.\n"
    first, second = dead_letter("render", text="no paper", n=1), dead_letter("print", reason="max_deliveries", n=2)

    def chosen(*words: str) -> list[str]:
        return [row["task_id"] for row in as_rows("queue", "dlq", "list", *words)]

    assert chosen() == [first.id, second.id]
    assert chosen("--kind", "print") == [second.id]
    assert chosen("--reason", "fatal") == [first.id]
    assert chosen("--text", "paper") == [first.id]
    assert chosen("--limit", "1") == [first.id]
    assert chosen("--since", "1h") == [first.id, second.id]
    assert chosen("--until", "1h") == []
    assert chosen("--since", "2030-01-01") == [first.id, second.id][:0]
    assert "render" in penstock("queue", "dlq", "list").stdout
    assert "None of the 2" in penstock("queue", "dlq", "list", "--kind", "other").stderr


def test_one_is_shown_by_the_id_of_its_record_or_task(penstock: Command, as_json: AsJson, dead_letter: GiveUp) -> None:
    task = dead_letter(n=1)
    row = as_json("queue", "dlq", "inspect", task.id)
    assert (row["error"], row["error_text"], row["payload"], row["attempts"]) == ("ValueError", "no use", {"n": 1}, 1)
    assert as_json("queue", "dlq", "inspect", row["id"]) == row
    assert "no use" in penstock("queue", "dlq", "inspect", task.id).stdout
    penstock("queue", "dlq", "inspect", "unknown", code=3)


@pytest.mark.usefixtures("default_server")
def test_the_beginning_of_an_id_is_looked_for_among_the_newest(
    penstock: Command, as_json: AsJson, as_rows: AsJson, dead_letter: GiveUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, newest = dead_letter(n=1), dead_letter(n=2)
    records = [row["id"] for row in as_rows("dlq", "ls")]
    monkeypatch.setattr(dead_letters, "_PAGE", 1)
    assert as_json("dlq", "show", oldest.id[:-1])["task_id"] == oldest.id
    begin_with = DeadLetterStreams.begin_with
    monkeypatch.setattr(DeadLetterStreams, "begin_with", partialmethod(begin_with, most=1))
    assert as_json("dlq", "show", newest.id)["task_id"] == newest.id
    for given in (newest.id[:-1], oldest.id, records[0][:-3]):
        assert "pass the whole id of the record" in penstock("dlq", "show", given, code=2).stderr
        assert "pass the whole id of the record" in penstock("dlq", "edit", given, "--payload", "{}", code=2).stderr
    assert as_json("dlq", "show", records[0])["task_id"] == oldest.id


def test_some_are_purged_by_their_ids_without_reading_the_others(
    penstock: Command, as_rows: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        task = Task(kind="render", id=f"{n}")
        queue.client.call("d", "XADD", "orders_dlq", f"{n + 1}000-0", "data", task.id, "dlq_reason", "fatal")
    pages, page = list[Any](), DeadLetterStreams._page

    def counted(self: DeadLetterStreams, *args: Any) -> Any:
        found = page(self, *args)
        pages.extend(found.items)
        return found

    monkeypatch.setattr(DeadLetterStreams, "_page", counted)
    assert "deleted 2" in penstock("dlq", "purge", "3000-0", "4000-0", "--yes").stdout
    assert {letter.id for letter in pages} == {"3000-0", "4000-0"}
    assert [row["id"] for row in as_rows("dlq", "ls")] == ["1000-0", "2000-0", "5000-0", "6000-0"]


def test_an_id_that_stands_for_several_records_is_none(
    penstock: Command, as_json: AsJson, queue: RedisTaskQueue
) -> None:
    for stream, ids in {"orders_dlq": ("5000-0", "5000-1", "6000-0"), "parcels_dlq": ("6000-0", "7000-0")}.items():
        for record_id in ids:
            queue.client.call("d", "XADD", stream, record_id, "data", "1", "dlq_reason", "fatal")
    for words in (("purge", "-y"), ("redrive",), ("edit", "--payload", "1", "-y"), ("show",)):
        several = penstock("dlq", *words, "5000", code=2).stderr
        assert "'5000' matches 2 ids, such as 5000-0 and 5000-1" in several
        for given in ("6000-0", "60"):
            several = penstock("dlq", *words, given, code=2).stderr
            assert "'6000-0' is in 2 streams, such as orders_dlq and parcels_dlq" in several
    assert as_json("dlq", "purge", "6000", "7000", "--queue", "parcels", "-y")["purged"] == 2
    assert as_count(queue) == 3


@pytest.mark.usefixtures("default_server")
def test_a_stream_that_dead_letters_are_returned_to_is_that_of_one_dead_letter_stream(
    penstock: Command, as_json: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue
) -> None:
    task = dead_letter()
    for stream, record in (("graveyard", "5000-0"), ("orders_dlq", "6000-0")):
        queue.client.call(stream, "XADD", stream, record, "data", "1", "dlq_reason", "fatal")
    assert "requires --queue" in penstock("dlq", "redrive", "--to", "parcels", "-y", code=2).stderr
    assert not queue.client.call("parcels", "EXISTS", "parcels")
    assert "--to" in penstock("dlq", "redrive", "5000-0", code=2).stderr
    shown = penstock("dlq", "redrive", "-y")
    assert "skipped graveyard" in shown.stderr
    assert "`penstock dlq redrive --queue graveyard --to STREAM`" in shown.stderr
    assert "redrove 2 dead letters" in shown.stdout
    assert queue.pop() == in_first_run(task)
    assert as_json("dlq", "redrive", "--queue", "graveyard", "--to", "parcels")["redriven"] == 1
    assert queue.client.call("parcels", "XLEN", "parcels") == 1


def test_a_dry_run_changes_nothing(as_json: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue) -> None:
    dead_letter(), dead_letter()
    assert as_json("queue", "dlq", "retry", "--dry-run")["redriven"] == 2
    assert as_json("queue", "dlq", "purge", "--dry-run") == {"purged": 2, "is_dry_run": True}
    assert queue.dead.count() == 2


def test_a_retried_task_runs_again_and_has_a_new_result(
    as_json: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue
) -> None:
    task, other = dead_letter("render"), dead_letter("print")
    assert queue.get_result(task.id) is not None
    assert as_json("queue", "dlq", "retry", "--kind", "render", "--rate", "100")["redriven"] == 1
    assert queue.get_result(task.id) is None
    again = queue.pop()
    assert again == in_first_run(task)
    assert queue.finish_many([Result(task_id=task.id, kind="render", data="at last")]) == [True]
    result = queue.get_result(task.id)
    assert result is not None
    assert result.data == "at last"
    assert [letter.task_id for letter in queue.dead.iterate()] == [other.id]


def test_a_list_that_shows_a_part_tells_how_many_there_are(penstock: Command, dead_letter: GiveUp) -> None:
    dead_letter(), dead_letter()
    told = penstock("queue", "dlq", "list", "--limit", "1").stderr
    assert "1 of 2" in told


def test_an_id_that_nobody_has_is_an_error_and_the_others_are_done(
    penstock: Command, as_json: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue
) -> None:
    first, second = dead_letter(), dead_letter()
    assert "nosuch" in penstock("queue", "dlq", "retry", "nosuch", "-y", code=3).stderr
    counts = as_json("queue", "dlq", "retry", first.id, "nosuch", "-y", code=3)
    assert (counts["redriven"], counts["missing"]) == (1, ["nosuch"])
    assert as_json("queue", "dlq", "purge", second.id, "nosuch", "-y", code=3)["purged"] == 1
    assert queue.dead.count() == 0


def test_what_came_back_too_often_is_left_alone(as_json: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue) -> None:
    task = dead_letter()
    for _ in range(3):
        assert as_json("queue", "dlq", "retry", task.id)["redriven"] == 1
        queue.pop()
        queue.dead_letter(task.id)
    counts = as_json("queue", "dlq", "retry", task.id)
    assert (counts["redriven"], counts["refused"]) == (0, 1)
    assert as_json("queue", "dlq", "retry", task.id, "--max-redrives", "9")["redriven"] == 1


def test_a_task_that_was_done_meanwhile_is_not_retried(as_json: AsJson, queue: RedisTaskQueue) -> None:
    task = Task(kind="render")
    queue.enqueue(task)
    queue.pop()
    queue.push_result(Result(task_id=task.id, kind="render", data=1))
    queue.dead_letter(task.id)
    assert as_json("queue", "dlq", "retry", task.id)["refused"] == 1
    assert queue.dead.count() == 1


def test_many_are_asked_about_first(penstock: Command, dead_letter: GiveUp, queue: RedisTaskQueue) -> None:
    dead_letter(), dead_letter()
    penstock("queue", "dlq", "purge", code=1, text="n\n")
    assert queue.dead.count() == 2
    shown = penstock("queue", "dlq", "purge", "--limit", "1", text="y\n")
    assert "Permanently delete 1 dead letter of penstock.dead?" in shown.stderr
    assert "deleted 1" in shown.stdout
    penstock("queue", "dlq", "purge", "--yes")
    assert queue.dead.count() == 0


@pytest.mark.parametrize(("command", "done"), [("purge", "purged"), ("redrive", "redriven")])
def test_what_arrives_while_the_question_is_open_is_left_alone(
    as_json: AsJson,
    dead_letter: GiveUp,
    queue: RedisTaskQueue,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    done: str,
) -> None:
    dead_letter(), dead_letter()

    def confirm(question: str, *, yes: bool) -> None:
        assert question.endswith("2 dead letters of penstock.dead?")
        dead_letter()

    monkeypatch.setattr(dlq, "confirm", confirm)
    assert as_json("dlq", command)[done] == 2
    assert queue.dead.count() == 1


@pytest.mark.usefixtures("default_server")
def test_all_that_would_be_purged_are_counted(
    as_json: AsJson, dead_letter: GiveUp, queue: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(), dead_letter(), dead_letter()
    monkeypatch.setattr(DeadLetterStreams, "count", partialmethod(DeadLetterStreams.count, most=1))
    assert as_json("dlq", "purge", "--dry-run")["purged"] == 3
    assert as_json("dlq", "purge", "--dry-run", "--limit", "2")["purged"] == 2


def test_an_empty_id_is_that_of_no_dead_letter(penstock: Command, queue: RedisTaskQueue) -> None:
    queue.client.call(queue.keys.dead, "XADD", "orders_dlq", "*", "data", "1", "dlq_reason", "fatal")
    penstock("dlq", "show", "", code=3)
    assert "deleted 0" in penstock("dlq", "purge", "", "--yes", code=3).stdout
    penstock("dlq", "purge", "--queue", "", "--yes", code=2)
    assert as_count(queue) == 1


def as_count(queue: RedisTaskQueue) -> int:
    return int(queue.client.call("orders_dlq", "XLEN", "orders_dlq"))


@pytest.mark.usefixtures("default_server")
def test_an_editor_gets_the_whole_payload_or_none(
    penstock: Command, queue: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "true")  # an editor that changes nothing
    whole = json.dumps({"text": "x" * (2 << 20)}, separators=(",", ":")).encode()
    for payload in (whole, MsgpackSerializer().encode({"blob": b"\x00"})):
        queue.client.call("orders_dlq", "XADD", "orders_dlq", "*", "data", payload, "dlq_reason", "fatal")
    large, blob = (entry[0].decode() for entry in queue.client.call("orders_dlq", "XRANGE", "orders_dlq", "-", "+"))
    penstock("dlq", "edit", large, "--yes")
    [(_, fields)] = queue.client.call("orders", "XRANGE", "orders", "-", "+")
    assert fields[fields.index(b"data") + 1] == whole
    assert "pass a new one with --payload" in penstock("dlq", "edit", blob, "--yes", code=2).stderr
    assert as_count(queue) == 1


@pytest.mark.usefixtures("default_server")
def test_counts_by_cause_that_are_not_of_all_say_so(
    penstock: Command, dead_letter: GiveUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(), dead_letter()
    failures = DeadLetterStreams.failures
    monkeypatch.setattr(dead_letters, "_PAGE", 1)
    assert "newest" not in penstock("dlq", "ls", "--causes").stderr
    monkeypatch.setattr(DeadLetterStreams, "failures", partialmethod(failures, most=1))
    assert "the newest 1 that match" in penstock("dlq", "ls", "--causes").stderr


# --- export ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0 =1", "\ufeff=1", "\x00=1", "\n", "\tx"]
    + [f"{sign}1" for sign in "\uff1d\uff0b\uff0d\uff20"],
)
def test_formulas_are_made_harmless(text: str) -> None:
    assert harmless(text) == f"'{text}"
    assert harmless(f"a{text}") == f"a{text}"


def test_csv(penstock: Command, dead_letter: GiveUp, tmp_path: Path) -> None:
    task = dead_letter(text='=HYPERLINK("http://evil")', n="=1", quote='a "b", c\nd')
    rows = list(csv.DictReader(io.StringIO(penstock("queue", "dlq", "export").stdout)))
    assert [row["task_id"] for row in rows] == [task.id]
    assert rows[0]["error_text"] == '\'=HYPERLINK("http://evil")'
    assert json.loads(rows[0]["payload"]) == task.payload
    path = tmp_path / "dead.csv"
    penstock("queue", "dlq", "export", "--output", str(path), "--kind", "other")
    assert len(path.read_text().splitlines()) == 1


def test_json_lines(penstock: Command, dead_letter: GiveUp) -> None:
    tasks = [dead_letter(n=n) for n in range(3)]
    lines = penstock("queue", "dlq", "export", "--format", "jsonl", "--limit", "2").stdout.splitlines()
    assert [json.loads(line)["payload"] for line in lines] == [task.payload for task in tasks[:2]]


def test_parquet(penstock: Command, dead_letter: GiveUp, tmp_path: Path) -> None:
    tasks = [dead_letter(n=n) for n in range(3)]
    penstock("queue", "dlq", "export", "--format", "parquet", code=2)
    path = tmp_path / "dead.parquet"
    penstock("queue", "dlq", "export", "--format", "parquet", "-o", str(path))
    table = pyarrow.parquet.read_table(path).to_pylist()
    assert [row["task_id"] for row in table] == [task.id for task in tasks]
    assert [json.loads(row["payload"])["n"] for row in table] == [0, 1, 2]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_only_the_owner_can_read_a_new_file_of_an_export(
    penstock: Command, dead_letter: GiveUp, tmp_path: Path, form: str
) -> None:
    dead_letter(card="4111")
    path = tmp_path / "letters"
    penstock("dlq", "export", "--format", form, "--output", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    penstock("dlq", "export", "--format", form, "--output", str(path))
    assert path.stat().st_mode & 0o777 == 0o640, "whoever owns a file may share it"


def test_what_is_no_task_is_shown_and_exported_as_well(
    penstock: Command, as_json: AsJson, queue: RedisTaskQueue
) -> None:
    queue.client.call(queue.keys.dead, "XADD", queue.keys.tasks().stream, "*", "data", b"\xff\xfe")
    assert queue.pop(block=False) is None
    row = as_json("queue", "dlq", "list")
    assert (row["reason"], row["payload"]) == ("decode_error", "\\xff\\xfe")
    assert "decode_error" in penstock("queue", "dlq", "export").stdout


@pytest.mark.usefixtures("default_server")
def test_large_dead_letters_are_retried_and_purged_a_few_at_a_time(as_json: AsJson, dead_letter: GiveUp) -> None:
    for _ in range(50):
        dead_letter(text="no use", page="x" * 300_000)
    as_json("queue", "dlq", "retry", "--dry-run")  # everything is imported
    tracemalloc.start()
    try:
        assert as_json("queue", "dlq", "retry", "--limit", "40", "--yes")["redriven"] == 40
        assert as_json("queue", "dlq", "purge", "--yes")["purged"] == 10
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
