"""`penstock workers`: who works, on what, and when it was last heard of."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Server, paged
from penstock.cli.options import AsJson, Limit, Pattern
from penstock.cli.shown import Columns, print_rows
from penstock.ops.model import ConsumerState

_WORKERS: Columns = {
    "worker": "name",
    "state": lambda each: each.state.value,
    "in hand": "pending",
    "idle ms": "idle_ms",
    "groups": lambda each: ", ".join(each.groups),
    "streams": lambda each: ", ".join(each.streams),
}


def workers(
    server: Server,
    stream: Pattern = "*",
    state: Annotated[ConsumerState | None, typer.Option(help="Only those in this state.")] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
) -> None:
    """List workers: a consumer of several streams or lanes is one worker."""
    with server.inspector() as inspector:
        rows = paged(
            lambda count, cursor: inspector.workers.page(stream, state=state, limit=count, cursor=cursor), limit
        )
        print_rows(rows, _WORKERS, as_json=as_json, none="there is no worker")
