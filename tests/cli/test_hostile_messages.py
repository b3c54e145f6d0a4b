"""What somebody wrote to Redis reaches neither the terminal as control characters nor Rich as markup."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.cli.dlq_export import Format, export
from penstock.cli.shown import LogFormat
from penstock.shown import plain, shown, shown_lines, to_json
from penstock.sync.ops import Inspector
from penstock.sync.tasks import RedisTaskQueue, Result, Status, Task
from tests.cli.conftest import Command
from tests.helpers.processes import running

pytestmark = pytest.mark.usefixtures("default_server")
CONTROLS = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x9b31m\x00\x7f\u202eabc\u2066\u200b\u2028\r\x08"
MARKUP = "[/red][link=http://evil]x[/nothing] [bold"
HOSTILE = CONTROLS + MARKUP
AWKWARD: dict[Any, Any] = {
    b"\xff\x1b": b"\x00\xfe",
    1: "one",
    "1": "text",
    None: float("nan"),
    "infinite": [float("inf"), -float("inf")],
    "big": 2**64 - 1,
    "nested": {(1, 2): {b"a": 1}},
    "text": HOSTILE,
}


def is_harmless(text: str) -> bool:
    return not [
        char for char in text if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and char not in "\n\t"
    ]


@pytest.fixture
def letter(queue: RedisTaskQueue) -> str:
    """A dead letter of which every field is hostile; its id."""
    body = msgspec.msgpack.encode(
        {"id": "a" + "b" * 60, "kind": "render", "payload": {"deep": AWKWARD}, "requires": []}
    )
    fields = {
        "data": body, "task_id": HOSTILE, "kind": HOSTILE, "dlq_reason": HOSTILE, "dlq_error": HOSTILE,
        "dlq_error_text": HOSTILE, "dlq_source": HOSTILE, "dlq_consumer": HOSTILE, "dlq_time": "1",
        "dlq_traceback": f"Traceback:\n  File {HOSTILE}\nValueError",
    }  # fmt: skip
    flat = [part for pair in fields.items() for part in pair]
    return str(queue.client.call(queue.keys.dead, "XADD", queue.keys.dead, "*", *flat).decode())


@pytest.mark.parametrize(
    "words", [("list",), ("export",), ("export", "--format", "jsonl"), ("inspect",), ("list", "--json")]
)
def test_hostile_dead_letters_are_shown_as_escapes(penstock: Command, letter: str, words: tuple[str, ...]) -> None:
    given = (*words, letter) if words == ("inspect",) else words
    output = penstock("queue", "dlq", *given).stdout
    is_csv = words == ("export",)  # a table for programs keeps its cells as they are
    assert is_csv or is_harmless(output)
    assert "[link=http://evil]x[/nothing] [bold" in output or words == ("list",)
    assert letter in output


@pytest.mark.usefixtures("letter")
def test_a_table_that_is_shown_on_a_terminal_is_harmless(
    queue: RedisTaskQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert export(Inspector(queue.client).dead_letters.page(queue.keys.dead).items, Format.CSV, None) == 1
    output = capsys.readouterr().out
    assert is_harmless(output.replace("\r\n", "\n"))
    assert MARKUP in output


def test_every_payload_can_be_exported(penstock: Command, as_json: Callable[..., Any], letter: str) -> None:
    row = as_json("queue", "dlq", "list")
    payload = row["payload"]["deep"]
    assert payload["infinite"] == ["inf", "-inf"]
    assert payload["big"] == 2**64 - 1
    assert {payload["1"], payload["1 (str)"]} == {"one", "text"}
    [line] = csv.DictReader(io.StringIO(penstock("queue", "dlq", "export").stdout))
    assert json.loads(line["payload"]) == row["payload"]


def test_a_traceback_is_shown_in_its_lines(penstock: Command, letter: str) -> None:
    lines = penstock("queue", "dlq", "inspect", letter).stdout.splitlines()
    begin = lines.index("traceback      Traceback:")
    assert lines[begin + 1].startswith("                 File \\x1b[2J")
    assert lines[begin + 2] == "               ValueError"


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"n": 10**5000}, {"d": 1}, [[]], {b"\x80": {1.5: {True: None}}}])
def test_whatever_a_payload_holds_is_json(value: Any) -> None:
    text = to_json(value)
    assert json.loads(text.encode()) is not None
    assert is_harmless(text)


def test_what_is_nested_too_deep_is_cut() -> None:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    assert "too deeply" in to_json(value)


def test_texts_are_shown_as_they_are_unless_a_terminal_would_carry_them_out() -> None:
    assert shown("Grüße, 你好 👋 [bold]") == "Grüße, 你好 👋 [bold]"
    assert shown("\x1b[31m\n\u202e\ud800") == "\\x1b[31m\\n\\u202e\\ud800"
    assert shown_lines("a\n\tb\x1b", indent=2) == "a\n      b\\x1b"
    assert plain({"a": Status.OK}) == {"a": "ok"}
    record = logging.LogRecord("penstock", logging.INFO, "", 0, "the handler failed: %s", ("\x1b[2J",), None)
    assert LogFormat("%(message)s").format(record) == "the handler failed: \\x1b[2J"


def test_warnings_and_errors_of_a_command_are_shown_as_escapes() -> None:
    script = (
        "import logging, sys, penstock.cli.app as app\n"
        "from penstock.cli.command import command\n"
        "from penstock.errors import PenstockError\n"
        "@command(app.app)\n"
        "def fail() -> None:\n"
        "    logging.getLogger('penstock').warning('skipped %s', '\\x1b[2J')\n"
        "    raise PenstockError('no task \\x1b]0;x\\x07\\ud800')\n"
        "sys.argv = ['penstock', 'fail']\n"
        "app.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.stderr.decode() == "skipped \\x1b[2J\npenstock: no task \\x1b]0;x\\x07\\ud800\n"
    assert done.returncode == 1


def test_questions_are_shown_as_escapes(penstock: Command, queue: RedisTaskQueue) -> None:
    name = "\x1b[2J\x07_dlq"
    queue.client.call(name, "XADD", name, "*", "data", "1", "dlq_reason", "fatal")
    asked = penstock("dlq", "purge", code=1, text="n\n").stderr
    assert is_harmless(asked)
    assert "Permanently delete 1 dead letter of \\x1b[2J\\x07_dlq?" in asked


def test_open_tasks_and_errors_are_shown_as_escapes(penstock: Command, queue: RedisTaskQueue) -> None:
    queue.enqueue(Task(kind=MARKUP + "\x1b[2J"))
    for words in (("queue", "list"), ("queue", "list", "--json")):
        output = penstock(*words).stdout
        assert MARKUP in output
        assert is_harmless(output)
    queue.push_result(Result(task_id="a", kind="render", status=Status.ERROR, error=HOSTILE))
    shown_error = penstock("task", "result", "a", code=1).stderr
    assert "\\x1b[2J" in shown_error
    assert is_harmless(shown_error)


def test_ids_are_whole_in_a_pipe_and_on_a_narrow_terminal(
    penstock: Command, redis_url: str, dead_letter: Callable[..., Task]
) -> None:
    task = dead_letter("a_kind_with_a_long_name", "a_reason_with_a_long_name", "no use")
    [line] = [line for line in penstock("queue", "dlq", "list").stdout.splitlines() if task.id in line]
    assert "a_reason_with_a_long_name" in line
    words = [sys.executable, "-m", "penstock", "queue", "dlq", "list", "--url", redis_url]
    main, side = pty.openpty()
    with running(words, stdout=side, env={**os.environ, "COLUMNS": "40", "TERM": "xterm"}):
        os.close(side)
        output = b""
        while chunk := _read(main):
            output += chunk
    os.close(main)
    assert task.id in output.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how a terminal ends on Linux
        return b""


def test_an_import_of_a_queue_that_nobody_knows_fails(penstock: Command, queue: RedisTaskQueue) -> None:
    assert "no queue 'nosuch'" in penstock("queue", "import", "nosuch", code=3).stderr
    queue.client.call("old", "LPUSH", "old::pending", "a message")
    penstock("queue", "import", "old")
    penstock("queue", "import", "old")
