"""`penstock config`, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", "config", *words]
        return subprocess.run(command, cwd=tmp_path, env=clean | variables, capture_output=True, text=True, check=False)

    return run


def test_show_tells_where_each_value_came_from(run: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[task_queue]\nurl = 'redis://u:pa55@h:1/0'\n")
    shown = run("show", "--set", "task_queue.max_retry=7", PENSTOCK__RESULT_BACKEND__COMPRESS="true")
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.stdout.splitlines()}
    assert rows["task_queue.url"] == ['"redis://u:***@h:1/0"', "penstock.toml:2"]
    assert rows["task_queue.max_retry"] == ["7", "--set task_queue.max_retry"]
    assert rows["result_backend.compress"] == ["true", "PENSTOCK__RESULT_BACKEND__COMPRESS"]
    assert rows["task_queue.idle_ms"] == ["60000", "default"]
    as_json = [json.loads(line) for line in run("show", "--json").stdout.splitlines()]
    assert {
        "name": "task_queue.url",
        "value": "redis://u:***@h:1/0",
        "origin": {"source": "file", "place": "penstock.toml:2"},
    } in as_json


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "task_queue.idel_ms=1"],
            "--set task_queue.idel_ms: task_queue.idel_ms is unknown: did you mean 'idle_ms'?",
        ),
        (["--set", "nonsense"], "--set needs <table>.<key>=<value>"),
        (["--config", "nowhere.toml"], "the settings file nowhere.toml does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(run: Run, command: str, words: list[str], message: str) -> None:
    shown = run(command, *words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"penstock: {message}")
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("result_backend.provider=postgrse", "unknown result back-end 'postgrse'; did you mean 'postgres'?"),
        ("task_queue.provider=sqs", "unknown task queue 'sqs'; available: redis, stub"),
    ],
)
def test_check_looks_for_the_providers(run: Run, setting: str, message: str) -> None:
    shown = run("check", "--set", setting)
    assert shown.returncode == 2
    assert shown.stderr.startswith(f"penstock: --set {setting.partition('=')[0]}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the keys in keys.toml: [Errno 2] No such file or directory"),
        ("mode = 'sign'\nkyes = {}\n", "keys.toml: unknown kyes"),
        ("mode = ['sign']\nkeys = {a = 'AAAA'}\n", "mode=['sign'] must be 'sign' or 'encrypt'"),
        (f"mode = 'sign'\ncurrent = []\nkeys = {{a = '{'A' * 44}'}}\n", "current=[] is not one of the key ids"),
        (f"mode = 'sign'\nkeys = {{a = '{'A' * 44}'}}\n", ""),
    ],
)
def test_check_reads_the_keys_that_sign_and_encrypt(run: Run, tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "keys.toml").write_text(text)
    (tmp_path / "penstock.toml").write_text("[task_queue]\nprotection_file = 'keys.toml'\n")
    shown = run("check")
    assert (shown.returncode == 0) == (not message), shown.stderr
    assert not message or shown.stderr.startswith(f"penstock: penstock.toml:2: {message}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("task_queue.url=nonsense", "the Redis URL has no scheme"),
        ("task_queue.redis.nonsense=1", "task queue 'redis' cannot be created with the keys ['nonsense']"),
        ("task_queue.url=embedded://", ""),
        ("task_queue.provider=stub", ""),
    ],
)
def test_check_makes_the_task_queue_without_a_server(run: Run, setting: str, message: str) -> None:
    shown = run("check", "--set", setting)
    assert (shown.returncode == 0) == (not message), shown.stderr
    assert not message or shown.stderr.startswith(f"penstock: {message}")


def test_the_schema_is_json(run: Run) -> None:
    assert json.loads(run("schema").stdout)["title"] == "penstock.toml"
