"""`penstock pending`: messages that were handed out and are not settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from penstock.cli.command import EVERYTHING, Server, command, group, listed, match_prefix
from penstock.cli.options import AsJson, DryRun, GroupName, Limit, StreamName, Yes, confirm, duration
from penstock.cli.shown import Columns, print_rows, span_ms
from penstock.ids import before, is_id
from penstock.ops.model import Pending
from penstock.shown import to_json
from penstock.sync.ops import Inspector

app = group("Inspect pending messages and take them over.")
_PENDING: Columns = {
    "id": "id",
    "consumer": "consumer",
    "idle": lambda each: span_ms(each.idle_ms),
    "deliveries": "deliveries",
    "attempts": "attempts",
    "next run": lambda each: (
        None if each.due_in_ms is None else f"in {span_ms(each.due_in_ms)}" if each.due_in_ms > 0 else "due"
    ),
}
MessageIds = Annotated[
    list[str] | None,
    typer.Argument(help="Ids (or unique prefixes); if none is given, all pending messages that match the options."),
]
Consumer = Annotated[str | None, typer.Option(help="Only those held by this consumer.")]
Idle = Annotated[float, duration("Only those whose consumer has been idle for this long.", "--idle", default="0s")]


def _of(
    inspector: Inspector, stream: str, name: str, consumer: str | None, idle_s: float, limit: int
) -> Iterator[Pending]:
    return listed(
        lambda count, cursor: inspector.pending.page(
            stream, name, consumer=consumer, min_idle_ms=round(1000 * idle_s), limit=count, cursor=cursor
        ),
        limit,
    )


@command(app)
def ls(
    server: Server,
    stream: StreamName,
    name: GroupName,
    consumer: Consumer = None,
    idle: Idle = 0.0,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List pending messages and their consumers, oldest first."""
    with server.inspector() as inspector:
        rows = _of(inspector, stream, name, consumer, idle, limit)
        print_rows(rows, _PENDING, as_json=as_json, none="no pending messages")


def _chosen(
    inspector: Inspector, stream: str, name: str, ids: list[str] | None, consumer: str | None, idle_s: float
) -> list[str]:
    def is_pending(given: str) -> bool:
        found = inspector.pending.page(
            stream, name, consumer=consumer, min_idle_ms=round(1000 * idle_s), limit=1, cursor=before(given)
        )
        return [each.id for each in found.items] == [given]

    if ids and all(is_id(given) and is_pending(given) for given in ids):
        return ids
    # The beginning of an id is looked for in the whole list, which may be long.
    known = [each.id for each in _of(inspector, stream, name, consumer, idle_s, EVERYTHING)]
    return known if not ids else [match_prefix(given, known, f"pending message of {stream}/{name}") for given in ids]


@command(app)
def claim(
    server: Server,
    stream: StreamName,
    name: GroupName,
    to: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer that receives them.")],
    ids: MessageIds = None,
    consumer: Consumer = None,
    idle: Idle = 0.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move pending messages to another consumer; their current consumers lose them."""
    with server.inspector() as inspector:
        chosen = _chosen(inspector, stream, name, ids, consumer, idle)
        claimed = chosen
        if not dry_run and chosen:
            confirm(f"Move {len(chosen):,} messages of {stream}/{name} to {to}?", yes=yes)
            claimed = inspector.pending.claim(stream, name, chosen, to, min_idle_ms=round(1000 * idle))
    _print_outcome(f"{'would claim' if dry_run else 'claimed'} {len(claimed):,} messages", claimed, dry_run, as_json)


@command(app)
def retry(
    server: Server,
    stream: StreamName,
    name: GroupName,
    ids: MessageIds = None,
    consumer: Consumer = None,
    idle: Idle = 0.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make pending messages due now; a consumer that still handles one loses it."""
    with server.inspector() as inspector:
        chosen = _chosen(inspector, stream, name, ids, consumer, idle)
        due = chosen
        if not dry_run and chosen:
            confirm(f"Take {len(chosen):,} messages of {stream}/{name} from their consumers?", yes=yes)
            due = inspector.pending.retry(stream, name, chosen, min_idle_ms=round(1000 * idle))
    _print_outcome(f"{len(due):,} messages {'would be' if dry_run else 'are'} due now", due, dry_run, as_json)


def _print_outcome(text: str, ids: list[str], dry_run: bool, as_json: bool) -> None:
    print(to_json({"ids": ids, "is_dry_run": dry_run}) if as_json else text)
