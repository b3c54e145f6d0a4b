"""`penstock task` and `penstock queue list`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.cli.queue_options import moment, seconds
from penstock.errors import ConfigurationError
from penstock.sync.tasks import Priority, RedisTaskQueue, Result, Status, Task
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("default_server")


def test_a_task_is_sent_with_everything_that_belongs_to_it(penstock: Command, queue: RedisTaskQueue) -> None:
    words = ["--requires", "gpu,disk", "--priority", "high", "--key", "k", "--unique", "u", "--id", "mine"]
    assert penstock("task", "send", "render", '{"n": 1}', *words).stdout == "mine\n"
    task = queue.pop()
    assert task is not None
    assert (task.id, task.kind, task.payload, task.requires) == ("mine", "render", {"n": 1}, {"gpu", "disk"})
    assert (task.priority, task.key, task.unique) == (Priority.HIGH, "k", "u")


def test_the_result_is_shown_when_it_is_there(
    penstock: Command, queue: RedisTaskQueue, as_json: Callable[..., Any]
) -> None:
    task_id = penstock("task", "send", "render").stdout.strip()
    assert "no result yet" in penstock("task", "result", task_id, code=3).stderr
    assert as_json("task", "wait", task_id, "--timeout", "10ms", code=3) == {"task_id": task_id, "status": None}
    not_yet = as_json("task", "send", "render", "--wait", "10ms", code=3)
    assert not_yet["task_id"] in {task.id for task in queue.list_tasks()}
    queue.push_result(Result(task_id=task_id, kind="render", data={"pages": 3}))
    assert json.loads(penstock("task", "result", task_id).stdout) == {"pages": 3}
    assert as_json("task", "wait", task_id)["data"] == {"pages": 3}


def test_an_error_has_its_own_exit_code(penstock: Command, queue: RedisTaskQueue) -> None:
    queue.push_result(Result(task_id="a", kind="render", status=Status.ERROR, error="no paper"))
    assert "no paper" in penstock("task", "result", "a", code=4).stderr


@pytest.mark.parametrize("payload", ["{", "[1]", "5"])
def test_a_payload_that_is_no_object_is_refused(penstock: Command, payload: str, queue: RedisTaskQueue) -> None:
    penstock("task", "send", "render", payload, code=1)
    assert queue.pending_count() == 0


def test_open_tasks_are_listed(penstock: Command, queue: RedisTaskQueue, as_json: Callable[..., Any]) -> None:
    assert penstock("queue", "list").stdout == "No pending tasks\n"
    tasks = [Task(kind="render", requires=frozenset({"gpu"})) if n == 1 else Task(kind="print") for n in range(3)]
    queue.enqueue_many(tasks)
    lines = penstock("queue", "list").stdout.splitlines()
    assert sorted(lines) == sorted(f"{task.id}\t{task.kind}\t{','.join(task.requires)}" for task in tasks)
    assert len(penstock("queue", "list", "-n", "1", "--offset", "2").stdout.splitlines()) == 1
    task = queue.pop()
    assert task is not None
    assert {row["id"] for row in as_json("queue", "list")} == {task.id for task in tasks}
    [row] = as_json("queue", "list", "--pending")
    assert (row["task"]["id"], row["consumer"]) == (task.id, queue.consumer)


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5", 1.5), ("30s", 30), ("2h", 7200), ("1h30m", 5400), ("250ms", 0.25)]
)
def test_durations_are_read(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "5 s", "1x", "-5", "h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        seconds(text)


def test_moments_are_read() -> None:
    assert moment("2030-01-31T12:00:00+00:00") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert abs(moment("2h") - (datetime.now(UTC) - timedelta(hours=2))) < timedelta(minutes=1)
