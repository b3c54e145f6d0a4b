"""`penstock queue`: message queues and task queues."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli import dlq, task
from penstock.cli.command import FAILED, Server, command, group
from penstock.cli.options import AsJson, DryRun, Limit, Yes, confirm
from penstock.cli.shown import Columns, print_fields, print_rows
from penstock.errors import NotFound
from penstock.ops.model import QueueInfo, TaskQueueInfo
from penstock.queue.model import ImportReport
from penstock.shown import to_json
from penstock.sync.ops import Inspector
from penstock.sync.queue.importer import import_queue

app = group("Inspect message queues and task queues.")
app.add_typer(dlq.seeds_app, name="dlq")
command(app, "list", hidden=True)(task.ls)  # the name that users of other queues know
QueueArgument = Annotated[str, typer.Argument(help="The name of the queue.")]
Separator = Annotated[str, typer.Option("--separator", help="The key_separator of the queue.")]
_TITLES = {
    "pending": "waiting",
    "processing": "abandoned in flight",
    "dead_letters": "dead letters",
    "completed": "records in the completed log",
    "failed": "records in the failed log",
    "dedup_keys": "deduplication keys",
}
_QUEUES: Columns = {
    "queue": "name",
    "kind": "kind",
    "waiting": "waiting",
    "in progress": "in_progress",
    "retrying": "retrying",
    "scheduled": "scheduled",
    "dead letters": "dead_letters",
}


class MessageState(StrEnum):
    """Where a message of a queue is."""

    PENDING = "pending"
    PROCESSING = "processing"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"


class Deletable(StrEnum):
    """What of a queue can be deleted at once."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"


def _row(queue: QueueInfo | TaskQueueInfo) -> dict[str, Any]:
    if isinstance(queue, QueueInfo):
        numbers: tuple[object, ...] = (queue.pending, queue.processing, queue.retrying, None, queue.dead_letters)
    else:
        numbers = (queue.queued, queue.running, queue.waiting, queue.scheduled, queue.dead)
    names = ("waiting", "in_progress", "retrying", "scheduled", "dead_letters")
    kind = "messages" if isinstance(queue, QueueInfo) else "tasks"
    return {"name": queue.name, "kind": kind, **dict(zip(names, numbers, strict=True))}


def _tasks_or_messages(inspector: Inspector, queue: str, separator: str) -> QueueInfo | TaskQueueInfo:
    try:
        return inspector.tasks.info(queue)
    except NotFound:
        return inspector.queues.stats(queue, key_separator=separator)


@command(app)
def ls(server: Server, separator: Separator = "::", as_json: AsJson = False) -> None:
    """List message queues and task queues."""
    with server.inspector() as inspector:
        queues: list[QueueInfo | TaskQueueInfo] = [
            *inspector.queues.all(key_separator=separator),
            *inspector.tasks.all(),
        ]
        rows = sorted(map(_row, queues), key=lambda row: str(row["name"]))
    print_rows(rows, _QUEUES, as_json=as_json, none="no queues that have been read from")


@command(app)
def stats(server: Server, queue: QueueArgument, separator: Separator = "::", as_json: AsJson = False) -> None:
    """Print the counts of one message queue or task queue."""
    with server.inspector() as inspector:
        print_fields(_tasks_or_messages(inspector, queue, separator), as_json=as_json)


@command(app)
def peek(
    server: Server,
    queue: QueueArgument,
    state: Annotated[MessageState, typer.Option(help="The state of the messages.")] = MessageState.PENDING,
    separator: Separator = "::",
    limit: Limit = 10,
    as_json: AsJson = False,
) -> None:
    """Print the oldest messages of a message queue, or the newest of a log, without taking them."""
    with server.inspector() as inspector:
        found = inspector.queues.peek(queue, limit, source=state.value, key_separator=separator)
    rows = [{"queue": queue, "state": state.value, "payload": message} for message in found]
    print_rows(rows, {"payload": "payload"}, as_json=as_json, none=f"{queue} has no {state.value} messages")


@command(app)
def purge(
    server: Server,
    queue: QueueArgument,
    state: Annotated[Deletable, typer.Option(help="The state of the messages.")] = Deletable.PENDING,
    separator: Separator = "::",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the waiting messages of a message queue, or one of its logs."""
    with server.inspector() as inspector:
        newest = inspector.queues.newest(queue)  # what arrives while the question is open was not counted
        count = getattr(inspector.queues.stats(queue, key_separator=separator), state.value) or 0
        if not dry_run and count:
            confirm(f"Permanently delete {count:,} {state.value} messages of {queue}?", yes=yes)
            count = inspector.queues.purge(queue, state.value, key_separator=separator, until=newest)
    text = f"{'would delete' if dry_run else 'deleted'} {count:,} messages"
    print(to_json({"queue": queue, "state": state.value, "purged": count, "is_dry_run": dry_run}) if as_json else text)


@command(app, "import")
def import_(
    server: Server,
    name: QueueArgument,
    separator: Separator = "::",
    dead_letter_queue: Annotated[
        str | None, typer.Option(help="The key of the dead letters, if it is not <name>::dlq.")
    ] = None,
    include_unleased: Annotated[
        bool,
        typer.Option(
            "--include-unleased", help="Also import messages taken without a lease; their consumers must be stopped."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Import a queue of redis-message-queue 5: messages, dead letters, logs and deduplication keys.

    It can be run again at any time. Messages leased by old consumers are not imported; the exit code is then 1.
    """
    shows_progress = sys.stderr.isatty() and not as_json
    with server.client() as client:
        report = import_queue(
            client,
            name,
            key_separator=separator,
            dead_letter_queue=dead_letter_queue,
            include_unleased=include_unleased,
            is_dry_run=dry_run,
            on_progress=_show_progress if shows_progress else None,
        )
        is_known = any(getattr(report, field) for field in asdict(report)) or client.call(name, "EXISTS", name)
    if shows_progress:
        print(file=sys.stderr)
    if not is_known:
        raise NotFound(
            f"no queue {name!r} of redis-message-queue at {client.settings.where}: no message, log or "
            f"deduplication key starts with '{name}{separator}'; check the name and --separator"
        )
    if as_json:
        print(to_json({**asdict(report), "is_complete": report.is_complete, "is_dry_run": dry_run}))
    else:
        print("\n".join(_lines(report, is_dry_run=dry_run)))
    if not report.is_complete and not dry_run:
        raise typer.Exit(FAILED)


def _show_progress(report: ImportReport) -> None:
    print(f"\r{report.pending + report.processing} messages", end="", file=sys.stderr, flush=True)


def _lines(report: ImportReport, *, is_dry_run: bool) -> list[str]:
    lines = ["To import:" if is_dry_run else "Imported:"]
    lines += [f"  {getattr(report, field):>9,} {title}" for field, title in _TITLES.items()]
    if report.still_leased:
        lines.append(
            f"  {report.still_leased:>9,} are leased by old consumers: run this again when the leases have expired"
        )
    if report.without_lease:
        lines.append(
            f"  {report.without_lease:>9,} were taken without a lease: stop the old consumers, then use "
            "--include-unleased"
        )
    if not report.is_complete and not is_dry_run:
        lines.append("Until then, dead letters and logs stay in the old queue.")
    return lines
