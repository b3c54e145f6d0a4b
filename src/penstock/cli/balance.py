"""`penstock balance`: whole streams that are shared out over consumers."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Server, command, group, paged
from penstock.cli.options import AsJson, Limit, Yes, confirm
from penstock.cli.shown import Columns, print_rows
from penstock.shown import shown, to_json

app = group("Look at balanced services, and take streams from their owners.")
_SERVICES: Columns = {
    "service": "name",
    "streams": "streams",
    "waiting": "waiting",
    "consumers": lambda each: len(each.peers),
    "dead letters": "dead_letters",
}
_STREAMS: Columns = {
    "data stream": "data_stream",
    "owner": "owner",
    "lock ms": "lock_ms",
    "deliveries": "deliveries",
    "idle ms": "idle_ms",
}


@command(app)
def ls(
    server: Server,
    service: Annotated[str | None, typer.Argument(help="List the streams of this service, and who owns them.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only streams of this consumer.")] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
) -> None:
    """List balanced services, or the streams of one."""
    with server.inspector() as inspector:
        if service is None:
            print_rows(inspector.services.all(), _SERVICES, as_json=as_json, none="there is no balanced service")
            return
        rows = paged(
            lambda count, cursor: inspector.services.streams(service, owner=owner, limit=count, cursor=cursor), limit
        )
        print_rows(rows, _STREAMS, as_json=as_json, none=f"no stream of {service} was handed out")


@command(app)
def release(
    server: Server,
    service: Annotated[str, typer.Argument(help="The service.")],
    stream: Annotated[str, typer.Argument(help="The data stream.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take a stream from its owner, so that another consumer takes it over."""
    with server.inspector() as inspector:
        inspector.services.info(service)
        confirm(f"Take stream {stream} of {service} from its owner?", yes=yes)
        owner = inspector.services.release(service, stream)
    row = {"service": service, "stream": stream, "owner": owner}
    print(to_json(row) if as_json else f"{shown(stream)} was owned by {shown(owner)}; another consumer takes it over")
