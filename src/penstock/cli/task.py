"""`penstock task`: send tasks, and look for their results."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from enum import StrEnum
from typing import Annotated

import typer

from penstock import ids, times
from penstock.cli.command import FAILED, NOT_FOUND, Server, command, group, listed, match_prefix
from penstock.cli.options import FROM_SETTINGS, AsJson, Kind, Limit, QueueName, duration, parsed, words
from penstock.cli.shown import Columns, print_error, print_fields, print_rows, say
from penstock.errors import ConfigurationError, NotFound
from penstock.ops.model import TaskInfo, TaskState
from penstock.shown import command_line, shown, to_json
from penstock.sync.ops import Inspector
from penstock.task import Priority, Result, Status, Task

app = group("Send tasks, track them, and read their results.")
_SHOWN_BYTES = 2_048  # of a task in a table, which shows no payload
_TASKS: Columns = {
    "id": "id",
    "kind": "kind",
    "state": lambda each: each.state.value,
    "attempts": "attempts",
    "requires": lambda each: ", ".join(each.requires),
    "worker": "consumer",
    "due": lambda each: None if each.due_at_ms is None else ids.moment(each.due_at_ms),
    "result": "status",
}


class Listed(StrEnum):
    """The states whose tasks can be listed; those that were given up are dead letters."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    DONE = "done"


TaskId = Annotated[str, typer.Argument(help="The id (or a unique prefix) of the task.")]


def _due_ms(text: str) -> int:
    found = times.milliseconds_of(text)
    if found is None and (from_now_s := times.seconds_of(text)) is not None:
        found = (time.time_ns() + round(from_now_s * 1e9)) // 1_000_000
    if found is None:
        raise ConfigurationError(f"{text[:100]!r} is not a time: write 2030-01-31T12:00Z, or 2h for in two hours")
    return found


@command(app)
def send(
    server: Server,
    kind: Annotated[str, typer.Argument(help="The kind of the task.")],
    payload: Annotated[str, typer.Argument(help="The payload, a JSON object.")] = "{}",
    task_id: Annotated[str | None, typer.Option("--id", help="The id (default: a new one).")] = None,
    requires: Annotated[str, typer.Option(help="Capabilities that a worker must have, separated by commas.")] = "",
    priority: Annotated[Priority, typer.Option(help="The priority of the task.")] = Priority.NORMAL,
    key: Annotated[str | None, typer.Option(help="The key for limits per key.")] = None,
    unique: Annotated[str | None, typer.Option(help="Add the task only if no open task has the same value.")] = None,
    delay: Annotated[float | None, duration("Run it after this delay.")] = None,
    at: Annotated[
        int | None,
        typer.Option(help="Run it at this time: 2030-01-31T12:00Z, or 2h for in two hours.", **parsed(_due_ms, "TIME")),
    ] = None,
    wait: Annotated[float | None, duration("Wait at most this long for the result, and print it.")] = None,
    queue: QueueName = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Add a task to a queue and print its id."""
    names: dict[str, str] = {"id": task_id} if task_id else {}
    task = Task(
        kind=kind,
        payload=_object(payload),
        requires=words(requires),
        priority=priority,
        key=key,
        unique=unique,
        **names,  # type: ignore[arg-type]
    )
    with server.task_queue(queue) as opened:
        added = opened.enqueue(task, delay=delay, at=None if at is None else ids.moment(at))
        if wait is not None:
            try:
                found = opened.wait_for_result(added, wait)
            except BaseException:
                print_error(f"sent task {added}; wait for its result with {command_line('task wait', added)}")
                raise
            _show(found, added, as_json)
            return
    print(to_json({"id": added, "is_new": added == task.id}) if as_json else shown(added))


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"the payload is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"the payload must be a JSON object such as '{{\"n\": 1}}', not {text[:40]}")
    return found


@command(app)
def ls(
    server: Server,
    state: Annotated[Listed, typer.Option(help="The state of the tasks.")] = Listed.QUEUED,
    pending: Annotated[bool, typer.Option("--pending", help="Same as --state running.")] = False,
    kind: Kind = None,
    limit: Limit = 100,
    queue: QueueName = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """List tasks, oldest first; finished tasks newest first."""
    chosen = TaskState.RUNNING if pending else TaskState(state.value)
    options: dict[str, int] = {} if as_json else {"max_value_bytes": _SHOWN_BYTES}
    with server.inspector() as inspector:
        name = server.queue_name(queue)
        rows = listed(
            lambda count, cursor: inspector.tasks.tasks(name, chosen, kind=kind, limit=count, cursor=cursor, **options),
            limit,
        )
        print_rows(rows, _TASKS, as_json=as_json, none=f"No {chosen.value} tasks")


@command(app)
def status(server: Server, task_id: TaskId, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Print the state of a task; the exit code is 3 if the queue does not know it.

    A dead task is known until its result expires; `penstock dlq show` finds it for longer.
    """
    with server.inspector() as inspector:
        print_fields(_find(inspector, server.queue_name(queue), task_id), as_json=as_json)


def _find(inspector: Inspector, queue: str, task_id: str) -> TaskInfo:
    """Return the task of an id, or of the beginning of one."""
    found = inspector.tasks.status(queue, task_id)
    if found.state is not TaskState.UNKNOWN:
        return found
    known, is_complete = inspector.tasks.begin_with(queue, task_id)
    if not is_complete:  # another one, not read here, may also begin like this
        raise NotFound(
            f"no task of queue {queue!r} has the id {task_id!r}, and it has too many to look for ids that begin so"
        )
    return inspector.tasks.status(queue, match_prefix(task_id, known, f"task of queue {queue!r}"))


@command(app)
def cancel(server: Server, task_id: TaskId, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Cancel a task that no worker has started; the exit code is 1 if it is running or has ended."""
    with server.inspector() as inspector:
        name = server.queue_name(queue)
        found = _find(inspector, name, task_id).id
        outcome = inspector.tasks.cancel(name, found)
    text = {"running": "is already running", "gone": "has already ended"}.get(outcome, f"is {outcome}")
    print(to_json({"id": found, "outcome": outcome}) if as_json else f"task {shown(found)} {text}")
    if outcome != "cancelled":
        raise typer.Exit(FAILED)


@command(app)
def result(server: Server, task_id: TaskId, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Print the result of a task; the exit code is 3 if there is none yet, 1 if the task failed."""
    with server.task_queue(queue) as opened:
        found = opened.get_result(task_id)
    if found is None:
        with server.inspector() as inspector:
            task_id = _find(inspector, server.queue_name(queue), task_id).id
            found = inspector.tasks.result(server.queue_name(queue), task_id)
    _show(found, task_id, as_json)


@command(app)
def wait(
    server: Server,
    task_id: TaskId,
    timeout: Annotated[float, duration("Wait at most this long.", default="1m")] = 60.0,
    queue: QueueName = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Wait for the result of a task and print it; same exit codes as `result`."""
    with server.task_queue(queue) as opened:
        if opened.get_result(task_id) is None:
            with server.inspector() as inspector, suppress(NotFound):  # it may be sent later
                task_id = _find(inspector, server.queue_name(queue), task_id).id
        _show(opened.wait_for_result(task_id, timeout), task_id, as_json)


def _show(found: Result | None, task_id: str, as_json: bool) -> None:
    if found is None:
        if as_json:
            print(to_json({"task_id": task_id, "status": None}))
        say(f"task {task_id} has no result yet")
        raise typer.Exit(NOT_FOUND)
    if as_json:
        print(to_json(found))
    elif found.status is Status.OK:
        print(to_json(found.data))
    else:
        print_error(f"{found.status.value}: {found.error}")
    if found.status is Status.ERROR:
        raise typer.Exit(FAILED)
