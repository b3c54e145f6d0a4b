"""`penstock schedule`: tasks that workers add by the clock."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import ids
from penstock.cli.command import Server, command, group
from penstock.cli.options import FROM_SETTINGS, AsJson, QueueName
from penstock.cli.shown import Columns, print_rows
from penstock.shown import shown, to_json

app = group("Inspect, pause, resume and run the schedules of a task queue.")
Name = Annotated[str, typer.Argument(help="The schedule.")]
_SCHEDULES: Columns = {
    "schedule": "name",
    "kind": "kind",
    "next": lambda each: None if each.next_at_ms is None else ids.moment(each.next_at_ms),
    "paused": "is_paused",
    "next task": "next_task_id",
}


@command(app)
def ls(server: Server, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """List schedules, and when their next tasks are due; the rules are in the workers' code."""
    with server.inspector() as inspector:
        found = inspector.schedules.of(server.queue_name(queue))
        print_rows(found, _SCHEDULES, as_json=as_json, none="no schedules; workers create them when they start")


@command(app)
def pause(server: Server, name: Name, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Pause a schedule: workers skip its times until it is resumed. Tasks already queued still run."""
    with server.inspector() as inspector:
        is_new = inspector.schedules.pause(server.queue_name(queue), name)
    _print_state(
        name, as_json, is_paused=True, is_changed=is_new, text="is paused" if is_new else ("was already paused")
    )


@command(app)
def resume(server: Server, name: Name, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Resume a schedule from its next time; missed times are not made up."""
    with server.inspector() as inspector:
        is_new = inspector.schedules.resume(server.queue_name(queue), name)
    _print_state(name, as_json, is_paused=False, is_changed=is_new, text="is resumed" if is_new else "was not paused")


def _print_state(name: str, as_json: bool, *, is_paused: bool, is_changed: bool, text: str) -> None:
    row = {"schedule": name, "is_paused": is_paused, "is_changed": is_changed}
    print(to_json(row) if as_json else f"schedule {shown(name)} {text}")


@command(app)
def run(server: Server, name: Name, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Run a schedule's task now, in addition to its next time, and print the task id."""
    with server.inspector() as inspector:
        task_id = inspector.schedules.run(server.queue_name(queue), name)
    print(to_json({"schedule": name, "id": task_id}) if as_json else task_id)
