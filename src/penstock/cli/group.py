"""`penstock group`: consumer groups, and how far they are behind."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from penstock import ids
from penstock.cli.command import Server, command, group
from penstock.cli.options import AsJson, GroupName, StreamName, Yes, confirm, duration
from penstock.cli.shown import Columns, print_rows
from penstock.cli.stream import lag_text
from penstock.errors import PenstockError
from penstock.ops.model import GroupLag
from penstock.shown import shown, to_json
from penstock.sync.ops import Inspector, Sampler
from penstock.times import moment_ms

app = group("Look at consumer groups, move and delete them.")
_GROUPS: Columns = {
    "stream": "stream",
    "group": "name",
    "kind": lambda each: each.kind.value,
    "consumers": "consumers",
    "lag": lambda each: lag_text(each.lag),
    "pending": "pending",
    "retries waiting": "retries_waiting",
    "last delivered": "last_delivered_id",
}
_PLACES = {"beginning": "-", "end": "+"}
_LAGS: Columns = {
    "stream": "stream",
    "group": "group",
    "lag": lag_text,
    "age s": "age_s",
    "pending": "pending",
    "in/s": "in_per_s",
    "out/s": "out_per_s",
    "drained in s": "drain_s",
}


@command(app)
def ls(
    server: Server,
    stream: Annotated[str | None, typer.Argument(help="The stream; all streams if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the groups of a stream, or of all streams."""
    with server.inspector() as inspector:
        if stream is not None:
            found = inspector.groups.of(stream)
        else:
            found = tuple(each for info in inspector.overview(count_lags=True).streams for each in info.groups)
        print_rows(found, _GROUPS, as_json=as_json, none="there is no group")


@command(app)
def lag(
    server: Server,
    stream: Annotated[str | None, typer.Argument(help="The stream; all streams if left out.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group; all groups if left out.")] = None,
    over: Annotated[
        float, duration("Sample twice, this far apart, for rates and drain time; 0s samples once.", default="0s")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Print how many entries groups have not read, how old the oldest is, and how long it will take to catch up."""
    with server.inspector() as inspector:
        if stream is None:
            found = _lags_of_all(inspector, over)
        else:
            names = [each.name for each in inspector.groups.of(stream)] if name is None else [name]
            found = [inspector.groups.lag(stream, each, over_s=over) for each in names]
        print_rows(found, _LAGS, as_json=as_json, none="there is no group")


def _lags_of_all(inspector: Inspector, over_s: float) -> list[GroupLag]:
    if not over_s:
        return inspector.groups.lags()
    sampler = Sampler(inspector)
    sampler.sample()
    time.sleep(over_s)
    if sampler.sample().error:
        raise PenstockError(sampler.samples[-1].error)
    return sampler.lags()


@command(app)
def seek(
    server: Server,
    stream: StreamName,
    name: GroupName,
    to: Annotated[
        str,
        typer.Argument(
            help="beginning, end, the id of the last entry that it has read, or the time from which on it reads."
        ),
    ],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a group, so that it reads entries again or skips them; what is pending stays pending."""
    with server.inspector() as inspector:
        now = inspector.groups.info(stream, name).last_delivered_id
        place = _PLACES.get(to) or (to if ids.is_id(to) else moment_ms(to, time.time_ns() // 1_000_000))
        confirm(f"Move group {name} of {stream} from {now} to {to}?", yes=yes)
        moved = inspector.groups.seek(stream, name, place)
    row = {"stream": stream, "group": name, "from": now, "to": moved}
    print(to_json(row) if as_json else f"group {shown(name)} of {shown(stream)} is at {moved}, was at {now}")


@command(app)
def delete(
    server: Server,
    stream: StreamName,
    name: GroupName,
    force: Annotated[bool, typer.Option("--force", help="Also if messages are pending, which are forgotten.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a group and what is kept for it."""
    with server.inspector() as inspector:
        pending = inspector.groups.info(stream, name).pending
        confirm(f"Delete group {name} of {stream}, with {pending:,} pending messages?", yes=yes)
        gone = inspector.groups.delete(stream, name, force=force)
    row = {"stream": stream, "group": name, "pending": gone}
    print(to_json(row) if as_json else f"deleted group {shown(name)} of {shown(stream)}, {gone:,} were pending")
