"""`penstock stream`: the streams of a server and what is in them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

from penstock import ids
from penstock.cli.command import EVERYTHING, Server, command, group, listed, match_prefix, must_match, paged
from penstock.cli.options import AsJson, DryRun, Limit, Since, StreamName, Until, Yes, confirm, duration
from penstock.cli.shown import Columns, print_fields, print_rows, say, span
from penstock.errors import ConfigurationError, NotFound
from penstock.model import Lag
from penstock.ops.model import Entry, GroupLag, RetentionPolicy, StreamInfo, StreamKind, Totals
from penstock.shown import command_line, plain, shown, to_json
from penstock.sync.delivery.publisher import Duplicate
from penstock.sync.ops import Inspector
from penstock.sync.streams.producer import StreamProducer

app = group("Inspect streams, publish to them and trim them.")
_POLL_S = 0.2
_BEGINNING = 1_000  # bytes of a payload that a table shows
_DIGITS = 19  # of the milliseconds of an id
_SCANNED = 10_000  # entries of one millisecond among which the beginning of an id is looked for


def lag_text(lag: Lag | GroupLag | None) -> object:
    """Return a lag for a table, with a mark if it is an upper bound."""
    return None if lag is None else f"{'' if lag.is_exact else 'up to '}{lag.count:,}"


def total_lag_text(totals: Totals) -> str:
    """Return the lag of all groups like lag_text()."""
    return f"{'' if totals.is_lag_exact else 'up to '}{totals.lag:,}"


_STREAMS: Columns = {
    "stream": "name",
    "kind": lambda each: each.kind.value,
    "entries": "length",
    "groups": "groups_count",
    "lag": lambda each: lag_text(each.lag),
    "pending": "pending",
    "dead letters": "dead_letters",
    "last added": "last_added_at",
}

GROUPS: Columns = {
    "stream": "stream",
    "group": "name",
    "kind": lambda each: each.kind.value,
    "consumers": "consumers",
    "lag": lambda each: lag_text(each.lag),
    "oldest unread": lambda each: span(each.lag.age_s) if each.lag.count else None,
    "pending": "pending",
    "retries waiting": "retries_waiting",
    "last delivered": "last_delivered_id",
}


def entry_row(entry: Entry) -> dict[str, Any]:
    """Return an entry as `--json` prints it."""
    return {
        "stream": entry.stream,
        "id": entry.id,
        "added_at": entry.added_at,
        "message_id": entry.message_id,
        "key": entry.key,
        "headers": entry.headers,
        "form": entry.payload.form,
        "payload": entry.payload.value,
        "note": entry.payload.note,
        "size": entry.size,
        "fields": {each.name: each.value for each in entry.fields},
    }


def payload_text(entry: Any) -> str:
    """Return the beginning of a payload in one line."""
    payload = entry.payload
    text = to_json(payload.value) if payload.value is not None else f"({payload.form}) {payload.note}"
    return text if len(text) <= _BEGINNING else f"{text[:_BEGINNING]}..."


_ENTRIES: Columns = {
    "id": "id",
    "added": "added_at",
    "key": "key",
    "payload": payload_text,
}


@command(app)
def ls(
    server: Server,
    match: Annotated[str, typer.Argument(help="A glob pattern.")] = "*",
    kind: Annotated[StreamKind | None, typer.Option(help="Only streams of this kind.")] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
) -> None:
    """List streams with their kind, length and lag."""
    with server.inspector() as inspector:
        must_match(inspector, match)
        rows = listed(lambda count, cursor: inspector.streams.page(match, kind, limit=count, cursor=cursor), limit)
        print_rows(rows, _STREAMS, as_json=as_json, none="no streams match")


@command(app)
def info(server: Server, stream: StreamName, as_json: AsJson = False) -> None:
    """Print everything about one stream, with its groups."""
    with server.inspector() as inspector:
        found = inspector.streams.info(stream)
    if as_json:
        print_fields(found, as_json=True)
        say_unlisted_groups([found])
        return
    print_fields({name: value for name, value in plain(found).items() if name != "groups"}, as_json=False)
    if found.groups:
        print()
        print_rows(found.groups, GROUPS, as_json=False)
    say_unlisted_groups([found])


def say_unlisted_groups(streams: Iterable[StreamInfo]) -> None:
    """Say which streams have more groups than are listed, and how to list them all."""
    for each in streams:
        if each.groups_count > len(each.groups):
            say(
                f"{each.name} has {each.groups_count:,} groups, of which {len(each.groups)} are listed; list all with "
                f"{command_line('group ls', each.name)}"
            )


@command(app)
def peek(
    server: Server,
    stream: StreamName,
    entry: Annotated[
        str | None, typer.Argument(help="The id (or a unique prefix) of one entry, to print all of it.")
    ] = None,
    since: Since = None,
    until: Until = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="Print the oldest first.")] = False,
    text: Annotated[str, typer.Option(help="Only entries that contain this text.")] = "",
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Print entries, newest first, without consuming them."""
    with server.inspector() as inspector:
        inspector.streams.info(stream, memory=False)  # raises NotFound where there is no stream
        if entry is not None:
            found_id = _entry_id(inspector, stream, entry)
            print_fields(entry_row(inspector.streams.entry(stream, found_id)), as_json=as_json)
            return
        start, end = ids.ZERO if since is None else str(since), "+" if until is None else str(max(0, until - 1))
        found = paged(
            lambda count, cursor: inspector.streams.entries(
                stream, start=start, end=end, newest_first=not oldest, text=text, limit=count, cursor=cursor
            ),
            limit,
        )
        _print_entries(found, as_json)


def _entry_id(inspector: Inspector, stream: str, given: str) -> str:
    """Return the id of the entry that is meant by an id, or by the beginning of one."""
    ms, dash, _ = given.partition("-")
    if ids.is_id(given):
        with suppress(NotFound):
            return inspector.streams.entry(stream, given, max_value_bytes=1).id
    if not (ms.isascii() and ms.isdigit()):
        return given  # no id, which the Inspector says
    # Ids are in the order of their numbers: those that begin alike are one range for each number of digits.
    ends = [ms] if dash else [ms + "9" * more for more in range(_DIGITS + 1 - len(ms))]
    read = partial(inspector.streams.entries, stream, max_value_bytes=1)
    known = [
        each.id
        for end in ends
        for each in paged(
            lambda count, cursor, end=end: read(start=ms.ljust(len(end), "0"), end=end, limit=count, cursor=cursor),  # type: ignore[misc]
            _SCANNED if dash else 2,
        )
    ]
    return match_prefix(given, known, f"entry of stream {stream!r}")


def _print_entries(found: Iterator[Entry], as_json: bool) -> None:
    if as_json:
        for entry in found:
            print(to_json(entry_row(entry)))
    else:
        print_rows(found, _ENTRIES, as_json=False, none="no entries match")


@command(app)
def tail(
    server: Server,
    stream: StreamName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Number of existing entries to print first.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new entries until Ctrl-C.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the newest entries, then new ones as they arrive."""
    with server.inspector() as inspector:
        last = inspector.streams.info(stream, memory=False).last_generated_id  # '' = the stream has huge entries
        newest = list(
            paged(
                lambda count, cursor: inspector.streams.entries(stream, end=last or "+", limit=count, cursor=cursor),
                limit if last else max(limit, 1),
            )
        )
        last = last or (newest[0].id if newest else ids.ZERO)
        _print_lines(reversed(newest[:limit]), as_json)
        while follow:
            read = partial(inspector.streams.entries, stream, start=ids.after(last), newest_first=False)
            for entry in paged(lambda count, cursor, read=read: read(limit=count, cursor=cursor), EVERYTHING):  # type: ignore[misc]
                _print_lines(iter([entry]), as_json)
                last = entry.id
            time.sleep(_POLL_S)  # everything is printed that was there


def _print_lines(entries: Iterator[Entry], as_json: bool) -> None:
    for entry in entries:
        # A line each as they come: a table would not know how wide its columns are.
        line = f"{entry.id}  {shown(entry.key or '-')}  {shown(payload_text(entry))}"
        print(to_json(entry_row(entry)) if as_json else line, flush=True)


@command(app)
def publish(
    server: Server,
    stream: Annotated[str, typer.Argument(help="The stream, which is created if it does not exist.")],
    payload: Annotated[
        str, typer.Argument(help="The payload as JSON; - reads one payload per line from standard input.")
    ],
    key: Annotated[str | None, typer.Option(help="The key of the messages.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="A header, as name=value. May be repeated.")] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="Add only one message with this key within the deduplication window.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages, and print their ids."""
    headers = dict(map(_header, header or []))
    if payload == "-" and dedup_key is not None:
        raise ConfigurationError(
            "--dedup-key applies to a single message; of several lines, all but the first would be duplicates"
        )
    messages = (_message(line) for line in (sys.stdin if payload == "-" else [payload]) if line.strip())
    with server.client() as client:
        producer = StreamProducer(client, stream, max_len=None)
        for message in messages:  # each as its line arrives: a pipe may stay open
            entry_id = producer.push(message, key=key, headers=headers or None, dedup_key=dedup_key)
            is_new = not isinstance(entry_id, Duplicate)
            print(to_json({"stream": stream, "id": entry_id, "is_new": is_new}) if as_json else entry_id, flush=True)
            if not is_new:
                say(f"nothing was added: the message {entry_id} has the same --dedup-key")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"--header {text!r} must be written as name=value")
    return name, value


def _message(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload is not JSON: {error}") from None


@command(app)
def trim(
    server: Server,
    stream: StreamName,
    max_age: Annotated[float | None, duration("Trim entries older than this.")] = None,
    max_length: Annotated[int | None, typer.Option(min=0, help="Keep this many entries.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=0, help="Keep about this many bytes.")] = None,
    archived_only: Annotated[
        bool, typer.Option("--archived-only", help="Trim only entries that an archive has copied.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Trim entries that no group, Spark query or archive still needs, within the given limits."""
    policy = RetentionPolicy(max_age, max_length, max_bytes, archived_only)
    with server.inspector() as inspector:
        report = inspector.retention.trim(stream, policy, dry_run=True)
        if not dry_run and report.entries:
            confirm(f"Trim {report.entries:,} entries of {stream}?", yes=yes)
            report = inspector.retention.trim(stream, policy)
    if as_json:
        print(to_json(report))
        return
    print(f"{'would trim' if dry_run else 'trimmed'} {report.entries:,} entries of {shown(stream)}")
    if report.held_by:
        say(f"kept the rest for groups {', '.join(report.held_by)}")
    if report.note:
        say(report.note)
