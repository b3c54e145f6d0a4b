"""`penstock queue`: what is in a task queue."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.dlq import dlq_app
from penstock.cli.queue_import import import_
from penstock.cli.queue_options import FROM_SETTINGS, AsJson, QueueName, Url, open_queue
from penstock.cli.shown import shown, to_json

queue_app = typer.Typer(help="What is in a task queue.", no_args_is_help=True)
queue_app.add_typer(dlq_app, name="dlq")
queue_app.command("import")(import_)


@queue_app.command("list")
def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Without the first so many.")] = 0,
    pending: Annotated[bool, typer.Option("--pending", help="Only those that are in somebody's hands.")] = False,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """List open tasks: id, kind and required capabilities, with tabs between."""
    with open_queue(url, queue) as opened:
        if pending:
            hands = opened.list_pending(offset + limit)[offset:]
            rows: list[dict[str, Any]] = [
                {"consumer": hand.consumer, "idle_ms": hand.idle_ms, "due_in_ms": hand.due_in_ms, "task": hand.task}
                for hand in hands
            ]
            lines: list[tuple[str, ...]] = [(hand.id, hand.kind, hand.consumer, f"{hand.idle_ms} ms") for hand in hands]
        else:
            tasks = opened.list_tasks(limit, offset)
            rows = [msgspec.structs.asdict(task) for task in tasks]
            lines = [(task.id, task.kind, ",".join(sorted(task.requires))) for task in tasks]
    if as_json:
        print(to_json(rows))
    else:
        print("\n".join("\t".join(map(shown, line)) for line in lines) or "No pending tasks")
