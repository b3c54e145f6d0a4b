"""`penstock queue import`: brings a queue of redis-message-queue over."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.shown import to_json
from penstock.errors import ConfigurationError
from penstock.queue.model import ImportReport
from penstock.sync.queue.importer import import_queue
from penstock.sync.redis.client import StreamClient

_TITLES = {
    "pending": "waiting",
    "processing": "abandoned in flight",
    "dead_letters": "dead letters",
    "completed": "records of the completed log",
    "failed": "records of the failed log",
    "dedup_keys": "deduplication keys",
}


def import_(
    name: Annotated[str, typer.Argument(help="Name of the queue.")],
    url: Annotated[str, typer.Option(help="Where Redis is, for example redis://localhost:6379.")],
    separator: Annotated[str, typer.Option(help="key_separator of the queue.")] = "::",
    dead_letter_queue: Annotated[
        str | None, typer.Option(help="Key of the dead letters, if it is not <name>::dlq.")
    ] = None,
    include_unleased: Annotated[
        bool,
        typer.Option("--include-unleased", help="Also what was taken without a lease: its consumers must be stopped."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what there is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Bring a queue of redis-message-queue 5 over: messages, dead letters, logs and deduplication keys.

    It may be run again at any time. What is under a lease of an old consumer stays: then the exit code is 2.
    """
    shows_progress = sys.stderr.isatty() and not as_json
    with StreamClient.from_url(url) as client:
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
        raise ConfigurationError(
            f"there is no queue {name!r} of redis-message-queue at {client.settings.where}: no message, log or "
            f"deduplication key begins with '{name}{separator}'; check the name and --separator"
        )
    if as_json:
        print(to_json({**asdict(report), "is_complete": report.is_complete}))
    else:
        print("\n".join(_lines(report, is_dry_run=dry_run)))
    if not report.is_complete and not dry_run:
        raise typer.Exit(2)


def _show_progress(report: ImportReport) -> None:
    print(f"\r{report.pending + report.processing} messages", end="", file=sys.stderr, flush=True)


def _lines(report: ImportReport, *, is_dry_run: bool) -> list[str]:
    lines = ["There are:" if is_dry_run else "Imported:"]
    lines += [f"  {getattr(report, field):>9,} {title}" for field, title in _TITLES.items()]
    if report.still_leased:
        lines.append(
            f"  {report.still_leased:>9,} are under leases of old consumers: run this again when those are over"
        )
    if report.without_lease:
        lines.append(
            f"  {report.without_lease:>9,} were taken without a lease: stop the old consumers, then --include-unleased"
        )
    if not report.is_complete and not is_dry_run:
        lines.append("Dead letters and logs stay with the old queue until then.")
    return lines
