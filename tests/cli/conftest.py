"""The command line on a real queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import Result as Shown

from penstock.sync.tasks import RedisTaskQueue, Task
from penstock.testing.task_queue_contract import in_first_run
from tests.helpers import commands

Command = Callable[..., Shown]


@pytest.fixture
def queue(redis_url: str) -> Iterator[RedisTaskQueue]:
    with RedisTaskQueue(redis_url) as queue:
        yield queue


@pytest.fixture
def penstock(redis_url: str) -> Command:
    """Runs a command; with `code`, that is the exit code that it must have."""

    def run(*words: str, code: int = 0, text: str = "") -> Shown:
        shown = commands.run(*words, "--url", redis_url, text=text)
        assert shown.exit_code == code, shown.output
        return shown

    return run


@pytest.fixture
def as_json(penstock: Command) -> Callable[..., Any]:
    """Runs a command with --json and returns the object that it printed."""

    def run(*words: str, code: int = 0) -> Any:
        [row] = _rows(penstock(*words, "--json", code=code))
        return row

    return run


@pytest.fixture
def as_rows(penstock: Command) -> Callable[..., list[Any]]:
    """Runs a command with --json and returns the objects that it printed, one a line."""
    return lambda *words: _rows(penstock(*words, "--json"))


def _rows(shown: Shown) -> list[Any]:
    return [json.loads(line) for line in shown.stdout.splitlines()]


@pytest.fixture
def dead_letter(queue: RedisTaskQueue) -> Callable[..., Task]:
    """Makes a dead letter."""

    def make(kind: str = "render", reason: str = "fatal", text: str = "no use", **payload: object) -> Task:
        task = Task(kind=kind, payload=payload)
        queue.enqueue(task)
        assert queue.pop() == in_first_run(task)
        assert queue.dead_letter(task.id, reason, error="ValueError", text=text)
        return task

    return make
