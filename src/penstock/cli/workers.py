"""`penstock workers`: which consumers work, on what, and when each was last active."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Server, listed, must_match
from penstock.cli.options import AsJson, Limit, Pattern
from penstock.cli.shown import Columns, print_rows, say, span_ms
from penstock.ops.model import MAX_CONSUMERS, ConsumerState

_WORKERS: Columns = {
    "worker": "name",
    "state": lambda each: each.state.value,
    "in progress": "pending",
    "last seen": lambda each: f"{span_ms(each.idle_ms)} ago",
    "groups": lambda each: ", ".join(each.groups),
    "streams": lambda each: ", ".join(each.streams),
}


def workers(
    server: Server,
    stream: Pattern = "*",
    state: Annotated[ConsumerState | None, typer.Option(help="Only workers in this state.")] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
) -> None:
    """List workers; a consumer of several streams or lanes counts as one worker."""
    with server.inspector() as inspector:
        must_match(inspector, stream)
        rows = listed(
            lambda count, cursor: inspector.workers.page(stream, state=state, limit=count, cursor=cursor), limit
        )
        print_rows(rows, _WORKERS, as_json=as_json, none="no workers")
        for name, group in inspector.workers.unlisted(stream):
            say(f"group {group} of {name} has more than {MAX_CONSUMERS:,} consumers, which are not listed")
