"""`penstock retention`: who keeps the memory of streams from being freed."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Server, listed
from penstock.cli.options import AsJson, Limit
from penstock.cli.shown import Columns, print_fields, print_rows

_STREAMS: Columns = {
    "stream": "stream",
    "entries": "length",
    "bytes": "memory_bytes",
    "finished": lambda each: f"{each.finished:,}{'' if each.is_exact else '+'}",
    "bytes reclaimable": "reclaimable_bytes",
    "kept by": lambda each: ", ".join(
        f"{pin.group}{' (dead)' if pin.is_dead else ''}" for pin in each.pins if pin.is_lowest
    ),
    "first needed": "floor_id",
}


def retention(
    server: Server,
    stream: Annotated[
        str | None, typer.Argument(help="Show everything about this stream (default: list all streams).")
    ] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
) -> None:
    """Print what keeps streams from being trimmed, and how much `penstock stream trim` could free."""
    with server.inspector() as inspector:
        if stream is not None:
            print_fields(inspector.retention.report(stream), as_json=as_json)
            return
        rows = listed(lambda count, cursor: inspector.retention.page(limit=count, cursor=cursor), limit)
        print_rows(rows, _STREAMS, as_json=as_json, none="no streams")
