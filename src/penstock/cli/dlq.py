"""`penstock queue dlq`: the tasks that were given up: look at them, try them again, keep them, throw them away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from penstock.cli.dlq_export import Format, as_row, export
from penstock.cli.dlq_filter import Chosen, Filter, Ids, Kind, Limit, Reason, Since, Text, Until
from penstock.cli.queue_options import FROM_SETTINGS, AsJson, QueueName, Url, open_queue
from penstock.cli.shown import cell, print_error, print_table, shown_lines, to_json
from penstock.errors import ConfigurationError

dlq_app = typer.Typer(help="The dead letters of a queue: tasks that were given up.", no_args_is_help=True)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dlq_app.command("list")
def list_(
    kind: Kind = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    limit: Limit = 100,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    with open_queue(url, queue) as opened:
        letters = list(Filter.of(None, kind, reason, since, until, text, limit).choose(opened))
        total, limits = opened.dead.count(), opened.client.dead_letter_retention.limits
    if as_json:
        print(to_json([as_row(letter) for letter in letters]))
        return
    if not letters:
        print("No dead letters." if not total else f"None of the {total} dead letters matches.")
        return
    table = Table(box=None)
    for title in ("id", "task", "kind", "reason", "attempts", "died", "error"):
        table.add_column(title, no_wrap=title != "error", overflow="fold")
    for letter in letters:
        died = letter.dead_at.isoformat(sep=" ", timespec="seconds")
        error = f"{letter.error}: {letter.error_text}" if letter.error else letter.error_text
        row = (letter.id, letter.task_id, letter.kind, letter.reason, letter.attempts, died, error[:60])
        table.add_row(*map(cell, row))
    print_table(table)
    if len(letters) < total:
        typer.echo(f"{len(letters)} of {total}; the limits of these settings: {limits}", err=True)


@dlq_app.command()
def inspect(
    record: Annotated[str, typer.Argument(help="Id of a record, or of a task.")],
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Show everything about one dead letter."""
    with open_queue(url, queue) as opened:
        letter = opened.dead.get(record)
    if letter is None:
        raise ConfigurationError(
            f"queue {opened.name!r} has no dead letter {record!r}: `penstock queue dlq list` shows them"
        )
    row = as_row(letter)
    if as_json:
        print(to_json(row))
        return
    for name, value in row.items():
        text = to_json(value) if isinstance(value, dict | list) else value
        print(f"{name:<11} {shown_lines(text, indent=12)}")


@dlq_app.command()
def retry(
    ids: Ids = None,
    kind: Kind = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="So many a second at most.")] = None,
    max_redrives: Annotated[int, typer.Option(min=1, help="Leave those alone that came back so often.")] = 3,
    dry_run: DryRun = False,
    yes: Yes = False,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue; each moves in one step."""
    chosen = Filter.of(ids, kind, reason, since, until, text, limit)
    counts = {"queued": 0, "gone": 0, "open": 0, "done": 0, "refused": 0}
    with open_queue(url, queue) as opened:
        letters = chosen.names(opened)
        if not dry_run and not _confirmed(f"Put {len(letters)} task(s) back?", chosen, letters, yes):
            raise typer.Abort
        for number, named in enumerate(letters):
            if named.redrives >= max_redrives:
                counts["refused"] += 1
                continue
            if rate is not None and number and not dry_run:
                time.sleep(1 / rate)
            letter = None if dry_run else opened.dead.record(named.id)
            counts["queued" if dry_run else "gone" if letter is None else opened.dead.put_back(letter)] += 1
    _tell({**counts, "dry_run": dry_run}, _retried(counts, dry_run, max_redrives), as_json, chosen.missing(letters))


def _retried(counts: dict[str, int], dry_run: bool, max_redrives: int) -> str:
    told = f"{'would put' if dry_run else 'put'} {counts['queued']} task(s) back"
    reasons = {
        "gone": "were put back or purged meanwhile",
        "open": "are queued already",
        "done": "have a result by now",
        "refused": f"came back {max_redrives} times already (--max-redrives)",
    }
    return told + "".join(f"; {counts[name]} {why}" for name, why in reasons.items() if counts[name])


@dlq_app.command()
def purge(
    ids: Ids = None,
    kind: Kind = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good."""
    chosen = Filter.of(ids, kind, reason, since, until, text, limit)
    with open_queue(url, queue) as opened:
        letters = chosen.names(opened)
        if not dry_run and not _confirmed(f"Delete {len(letters)} dead letter(s) for good?", chosen, letters, yes):
            raise typer.Abort
        gone = len(letters) if dry_run else opened.dead.purge([letter.id for letter in letters])
    told = f"{'would delete' if dry_run else 'deleted'} {gone}"
    _tell({"purged": gone, "dry_run": dry_run}, told, as_json, chosen.missing(letters))


@dlq_app.command("export")
def export_(
    kind: Kind = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    limit: Limit = None,
    form: Annotated[Format, typer.Option("--format", help="How the table is written.")] = Format.CSV,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; standard output if none.")] = None,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
) -> None:
    """Write dead letters as a table; cells that a spreadsheet would take for formulas are made harmless."""
    with open_queue(url, queue) as opened:
        count = export(Filter.of(None, kind, reason, since, until, text, limit).choose(opened), form, output)
    if output is not None:
        typer.echo(f"wrote {count} dead letter(s) to {output}", err=True)


def _confirmed(question: str, chosen: Filter, letters: list[Chosen], yes: bool) -> bool:
    if yes or not letters or not (chosen.is_everything or len(letters) > 1):
        return True
    return typer.confirm(question)


def _tell(counts: dict[str, object], told: str, as_json: bool, missing: list[str]) -> None:
    print(to_json({**counts, **({"missing": missing} if missing else {})}) if as_json else told)
    if missing:
        print_error(f"no dead letter matches {', '.join(missing)}: `penstock queue dlq list` shows them")
        raise typer.Exit(1)
