"""`penstock schedule`: tasks that workers add by the clock."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import ids
from penstock.cli.command import Server, command, group
from penstock.cli.options import FROM_SETTINGS, AsJson, QueueName
from penstock.cli.shown import Columns, print_rows
from penstock.shown import to_json

app = group("Look at the schedules of a task queue, and run them.")
Name = Annotated[str, typer.Argument(help="The schedule.")]
_SCHEDULES: Columns = {
    "schedule": "name",
    "kind": "kind",
    "next": lambda each: ids.moment(each.next_at_ms),
    "paused": "is_paused",
    "next task": "next_task_id",
}


@command(app)
def ls(server: Server, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """List schedules, and when their next tasks are due; the rules are in the workers' code."""
    with server.inspector() as inspector:
        found = inspector.tasks.schedules(server.queue_name(queue))
        print_rows(found, _SCHEDULES, as_json=as_json, none="there is no schedule: workers add the next task of each")


@command(app)
def run(server: Server, name: Name, queue: QueueName = FROM_SETTINGS, as_json: AsJson = False) -> None:
    """Add the task of a schedule now, besides the one that waits for its time, and print its id."""
    with server.inspector() as inspector:
        task_id = inspector.tasks.run_schedule(server.queue_name(queue), name)
    print(to_json({"schedule": name, "id": task_id}) if as_json else task_id)
