"""`penstock balance`: whole streams that are shared out over consumers."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Server, command, group, listed
from penstock.cli.options import AsJson, Limit, Yes, confirm
from penstock.cli.shown import Columns, print_rows, span_ms
from penstock.shown import shown, to_json

app = group("Inspect balanced services, and release streams from their owners.")
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
    "lock left": lambda each: span_ms(each.lock_ms),
    "deliveries": "deliveries",
    "idle": lambda each: span_ms(each.idle_ms),
}


@command(app)
def ls(
    server: Server,
    service: Annotated[str | None, typer.Argument(help="List the streams of this service and their owners.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only streams of this consumer.")] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
) -> None:
    """List balanced services, or the streams of one."""
    with server.inspector() as inspector:
        if service is None:
            print_rows(inspector.services.all(), _SERVICES, as_json=as_json, none="no balanced services")
            return
        rows = listed(
            lambda count, cursor: inspector.services.streams(service, owner=owner, limit=count, cursor=cursor), limit
        )
        print_rows(rows, _STREAMS, as_json=as_json, none=f"service {service} has not handed out any streams")


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
    print(to_json(row) if as_json else f"released {shown(stream)} from {shown(owner)}; another consumer takes it over")
