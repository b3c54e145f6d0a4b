"""`penstock group`: consumer groups, and how far they are behind."""

from __future__ import annotations

import glob
import time
from typing import Annotated

import typer

from penstock import ids
from penstock.cli.command import EVERYTHING, Server, command, group, paged
from penstock.cli.options import AsJson, GroupName, StreamName, Yes, confirm, duration
from penstock.cli.shown import Columns, print_rows, span
from penstock.cli.stream import GROUPS, lag_text, say_unlisted_groups
from penstock.errors import PenstockError
from penstock.ops.model import GroupLag, StreamInfo
from penstock.shown import shown, to_json
from penstock.sync.ops import Inspector, Sampler
from penstock.sync.ops.groups import group_lag
from penstock.times import moment_ms

app = group("Inspect, move and delete consumer groups.")
_PLACES = {"beginning": "-", "end": "+"}
_LAGS: Columns = {
    "stream": "stream",
    "group": "group",
    "lag": lag_text,
    "oldest unread": lambda each: span(each.age_s) if each.count else None,
    "pending": "pending",
    "in/s": "in_per_s",
    "out/s": "out_per_s",
    "drained in": lambda each: span(each.drain_s),
}


@command(app)
def ls(
    server: Server,
    stream: Annotated[str | None, typer.Argument(help="The stream (default: all).")] = None,
    as_json: AsJson = False,
) -> None:
    """List the groups of a stream, or of all streams."""
    with server.inspector() as inspector:
        streams = inspector.overview(count_lags=True).streams if stream is None else ()
        found = [each for info in streams for each in info.groups]
        if stream is not None:
            found = list(
                paged(lambda count, cursor: inspector.groups.page(stream, limit=count, cursor=cursor), EVERYTHING)
            )
        print_rows(found, GROUPS, as_json=as_json, none="no consumer groups")
        say_unlisted_groups(streams)


@command(app)
def lag(
    server: Server,
    stream: Annotated[str | None, typer.Argument(help="The stream (default: all).")] = None,
    name: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group (default: all).")] = None,
    over: Annotated[
        float, duration("Take two samples this far apart, for rates and drain time; 0s takes one.", default="0s")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Print how many entries groups have not read, the age of the oldest, and how long catching up will take."""
    streams: tuple[StreamInfo, ...] = ()
    with server.inspector() as inspector:
        if stream is not None and name is not None:
            found = [inspector.groups.lag(stream, name, over_s=over)]
        else:
            found, streams = _lags(inspector, "*" if stream is None else glob.escape(stream), over)
        if stream is not None and not found:
            inspector.streams.info(stream, memory=False)  # raises NotFound where there is no stream
        print_rows(found, _LAGS, as_json=as_json, none="no consumer groups")
        say_unlisted_groups(streams)


def _lags(inspector: Inspector, match: str, over_s: float) -> tuple[list[GroupLag], tuple[StreamInfo, ...]]:
    if not over_s:
        streams = inspector.overview(match, count_lags=True).streams
        return [group_lag(each) for info in streams for each in info.groups], streams
    sampler = Sampler(inspector, match=match)
    sampler.sample()
    time.sleep(over_s)
    if sampler.sample().error or sampler.overview is None:
        raise PenstockError(sampler.samples[-1].error)
    return sampler.lags(), sampler.overview.streams


@command(app)
def seek(
    server: Server,
    stream: StreamName,
    name: GroupName,
    to: Annotated[
        str,
        typer.Argument(
            help="beginning, end, the whole id of the last entry to count as read, or the time from which to read."
        ),
    ],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a group, so that it reads entries again or skips them; pending messages stay pending."""
    with server.inspector() as inspector:
        now = inspector.groups.info(stream, name).last_delivered_id
        place = _PLACES.get(to) or (to if ids.is_id(to) else moment_ms(to, time.time_ns() // 1_000_000))
        confirm(f"Move group {name} of {stream} from {now} to {to}?", yes=yes)
        moved = inspector.groups.seek(stream, name, place)
    row = {"stream": stream, "group": name, "from": now, "to": moved}
    print(to_json(row) if as_json else f"moved group {shown(name)} of {shown(stream)} from {now} to {moved}")


@command(app)
def delete(
    server: Server,
    stream: StreamName,
    name: GroupName,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if messages are pending or consumers are alive.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a group and its retry and attempt records."""
    with server.inspector() as inspector:
        found = inspector.groups.info(stream, name)
        what = f"{found.pending:,} pending and {lag_text(found.lag)} unread messages"
        confirm(f"Delete group {name} of {stream}, with {what}?", yes=yes)
        gone = inspector.groups.delete(stream, name, force=force)
    row = {"stream": stream, "group": name, "pending": gone}
    print(
        to_json(row) if as_json else (f"deleted group {shown(name)} of {shown(stream)} with {gone:,} pending messages")
    )
