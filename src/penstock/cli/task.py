"""`penstock task`: send tasks, and look for their results."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from penstock.cli.queue_options import FROM_SETTINGS, AsJson, QueueName, Url, open_queue, seconds
from penstock.cli.shown import shown, shown_lines, to_json
from penstock.errors import ConfigurationError
from penstock.task import Priority, Result, Status, Task

task_app = typer.Typer(help="Send tasks, and look for their results.", no_args_is_help=True)
_NOT_YET = 3
_FAILED = 4


@task_app.command()
def send(
    kind: Annotated[str, typer.Argument(help="The kind of the task.")],
    payload: Annotated[str, typer.Argument(help="The payload, a JSON object.")] = "{}",
    task_id: Annotated[str | None, typer.Option("--id", help="The id; a new one if none is given.")] = None,
    requires: Annotated[str, typer.Option(help="Capabilities that a worker must have, with commas between.")] = "",
    priority: Annotated[Priority, typer.Option(help="Which tasks go first.")] = Priority.NORMAL,
    key: Annotated[str | None, typer.Option(help="What limits per key go by.")] = None,
    unique: Annotated[str | None, typer.Option(help="Of tasks with the same text one is open at a time.")] = None,
    delay: Annotated[str | None, typer.Option(help="When it is due: '30s', '2h'.")] = None,
    at: Annotated[str | None, typer.Option(help="When it is due: ISO 8601.")] = None,
    wait: Annotated[str | None, typer.Option(help="Wait so long for the result: '30s'.")] = None,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Add a task to a queue and print its id."""
    names: dict[str, str] = {"id": task_id} if task_id else {}
    task = Task(
        kind=kind,
        payload=_object(payload),
        requires=frozenset(filter(None, requires.split(","))),
        priority=priority,
        key=key,
        unique=unique,
        **names,  # type: ignore[arg-type]
    )
    with open_queue(url, queue) as opened:
        due = _moment(at) if at else None
        added = opened.enqueue(task, delay=seconds(delay) if delay else None, at=due)
        if wait is not None:
            _show(opened.wait_for_result(added, seconds(wait)), added, as_json)
            return
    print(to_json({"id": added, "is_new": added == task.id}) if as_json else shown(added))


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"the payload is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"the payload must be a JSON object such as '{{\"n\": 1}}', not {text[:40]}")
    return found


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no moment: write it as 2030-01-31T12:00:00+00:00") from None
    return found if found.tzinfo is not None else found.astimezone()


@task_app.command()
def result(
    task_id: Annotated[str, typer.Argument(help="The id of the task.")],
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Print the result of a task; the exit code is 3 if there is none yet, 4 if it is an error."""
    with open_queue(url, queue) as opened:
        _show(opened.get_result(task_id), task_id, as_json)


@task_app.command()
def wait(
    task_id: Annotated[str, typer.Argument(help="The id of the task.")],
    timeout: Annotated[str, typer.Option(help="Wait so long: '30s', '5m'.")] = "60s",
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Wait for the result of a task and print it; exit codes as `result` has them."""
    with open_queue(url, queue) as opened:
        _show(opened.wait_for_result(task_id, seconds(timeout)), task_id, as_json)


def _show(found: Result | None, task_id: str, as_json: bool) -> None:
    if found is None:
        none_yet = f"task {shown(task_id)} has no result yet"
        typer.echo(to_json({"task_id": task_id, "status": None}) if as_json else none_yet, err=not as_json)
        raise typer.Exit(_NOT_YET)
    if as_json:
        print(to_json(found))
    elif found.status is Status.OK:
        print(to_json(found.data))
    else:
        typer.echo(f"{found.status.value}: {shown_lines(found.error)}", err=True)
    if found.status is Status.ERROR:
        raise typer.Exit(_FAILED)
