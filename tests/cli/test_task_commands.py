"""`penstock task` and `penstock queue list`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ConnectionLost
from penstock.sync.tasks import Priority, RedisTaskQueue, Result, Status, Task
from tests.cli.conftest import Command
from tests.helpers.commands import call

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


@pytest.mark.parametrize("error", [ConnectionLost("the connection broke"), KeyboardInterrupt()])
def test_a_task_whose_result_cannot_be_waited_for_is_named(
    queue: RedisTaskQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(RedisTaskQueue, "wait_for_result", fail)
    shown = call("task", "send", "render", "--wait", "1m", "-q", "--url", redis_url)
    assert shown.exit_code in {1, 130}
    [task] = queue.list_tasks()
    assert f"`penstock task wait {task.id}`" in shown.stderr


def test_a_task_is_waited_for_by_the_beginning_of_its_id(
    queue: RedisTaskQueue, as_json: Callable[..., Any], penstock: Command
) -> None:
    for task_id in ("alpha-1", "alpha-2", "beta-1"):
        queue.enqueue(Task(kind="render", id=task_id))
    queue.push_result(Result(task_id="beta-1", kind="render", data={"pages": 3}))
    assert as_json("task", "wait", "beta")["data"] == {"pages": 3}
    assert as_json("task", "wait", "alpha-1", "--timeout", "1ms", code=3)["task_id"] == "alpha-1"
    assert "matches 2 ids" in penstock("task", "wait", "alpha", code=2).stderr
    assert as_json("task", "wait", "later", "--timeout", "1ms", code=3)["task_id"] == "later"


def test_a_task_is_due_at_a_time_or_some_time_from_now(
    queue: RedisTaskQueue, as_json: Callable[..., Any], penstock: Command
) -> None:
    task_id = as_json("task", "send", "render", "--at", "2h")["id"]
    before = as_json("task", "send", "render", "--delay", "1h59m")["id"]
    after = as_json("task", "send", "render", "--delay", "2h1m")["id"]
    due = [as_json("task", "status", each)["due_at"] for each in (before, task_id, after)]
    assert due == sorted(due)
    penstock("task", "send", "render", "--at", "noon", code=2)
    lines = dict(line.split(maxsplit=1) for line in penstock("task", "status", task_id).stdout.splitlines())
    assert lines["due"].endswith(" UTC"), "for people it is a time"


def test_a_task_that_failed_ends_with_code_1(penstock: Command, queue: RedisTaskQueue) -> None:
    queue.push_result(Result(task_id="a", kind="render", status=Status.ERROR, error="no paper"))
    assert "no paper" in penstock("task", "result", "a", code=1).stderr


@pytest.mark.parametrize("payload", ["{", "[1]", "5"])
def test_a_payload_that_is_no_object_is_refused(penstock: Command, payload: str, queue: RedisTaskQueue) -> None:
    penstock("task", "send", "render", payload, code=2)
    assert queue.pending_count() == 0


@pytest.mark.parametrize("words", [("task", "ls"), ("queue", "list")])
def test_open_tasks_are_listed(
    penstock: Command, queue: RedisTaskQueue, as_rows: Callable[..., Any], words: tuple[str, ...]
) -> None:
    tasks = [Task(kind="render", requires=frozenset({"gpu"})) if n == 1 else Task(kind="print") for n in range(3)]
    queue.enqueue_many(tasks)
    lines = penstock(*words).stdout.splitlines()
    assert all(any(task.id in line and task.kind in line for line in lines) for task in tasks)
    assert len(as_rows(*words, "-n", "1")) == 1
    assert [row["id"] for row in as_rows(*words, "--kind", "render")] == [tasks[1].id]
    task = queue.pop()
    assert task is not None
    assert {row["id"] for row in as_rows(*words)} == {each.id for each in tasks} - {task.id}
    [row] = as_rows(*words, "--pending")
    assert (row["id"], row["state"], row["consumer"]) == (task.id, "running", queue.consumer)


def test_a_table_of_tasks_needs_no_payloads(
    penstock: Command, queue: RedisTaskQueue, as_rows: Callable[..., list[Any]]
) -> None:
    task = Task(kind="render", requires=frozenset({"gpu"}), payload={"text": "x" * 100_000})
    for delay in (None, 60):
        queue.enqueue(task, delay=delay)
        state = "queued" if delay is None else "scheduled"
        shown = penstock("task", "ls", "--state", state).stdout
        assert all(word in shown for word in (task.id, "render", "gpu", state))
        [row] = as_rows("task", "ls", "--state", state)
        assert (row["payload"], row["is_cut"]) == (task.payload, False)
        penstock("task", "cancel", task.id)
        task = Task(kind="render", requires=frozenset({"gpu"}), payload={"text": "x" * 100_000})


def test_a_task_is_found_by_the_beginning_of_its_id(
    penstock: Command, queue: RedisTaskQueue, as_json: Callable[..., Any]
) -> None:
    for task_id in ("abcd-1", "abcd-2", "xyz"):
        queue.enqueue(Task(kind="render", id=task_id))
    assert as_json("task", "status", "xy")["id"] == "xyz"
    assert as_json("task", "status", "abcd-1")["state"] == "queued"
    assert "matches 2 ids" in penstock("task", "status", "abcd", code=2).stderr
    assert "no task" in penstock("task", "status", "q", code=3).stderr
    assert as_json("task", "cancel", "xy") == {"id": "xyz", "outcome": "cancelled"}
    assert as_json("task", "cancel", "xyz", code=1)["outcome"] == "gone"
    assert queue.pending_count() == 2


def test_every_state_that_is_offered_can_be_listed(penstock: Command, queue: RedisTaskQueue) -> None:
    queue.enqueue(Task(kind="render"))
    offered = penstock("task", "ls", "--state", "nosuch", code=2).stderr
    for state in ("queued", "running", "waiting", "scheduled", "done"):
        assert state in offered
        penstock("task", "ls", "--state", state)
    assert "dead" not in offered
    assert "unknown" not in offered
