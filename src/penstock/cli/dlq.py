"""`penstock dlq`: dead letters of streams, message queues, task queues and balanced services alike."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from penstock.cli.command import EVERYTHING, NOT_FOUND, Server, command, group, match_prefix, paged
from penstock.cli.dlq_export import Format, as_row, export
from penstock.cli.options import (
    AsJson,
    DryRun,
    Kind,
    Limit,
    Output,
    Rate,
    Reason,
    Since,
    Text,
    Until,
    Yes,
    confirm,
)  # fmt: skip
from penstock.cli.shown import Columns, print_error, print_fields, print_rows, say
from penstock.errors import ConfigurationError, NotFound
from penstock.ids import is_id
from penstock.ops.model import DeadLetterFilter, DeadLetterInfo, DeadLetterStreamInfo
from penstock.shown import command_line, to_json
from penstock.sync.ops import Inspector

_WHOLE_BATCH = 20  # whole dead letters that are in memory together
_NAMED = 3  # streams that a question names
_SHORT, _WHOLE = 2_048, 64 << 20  # bytes of a value
_UNEDITABLE = {"protected", "pickle", "binary"}  # forms that no JSON can be written in
_LETTERS: Columns = {
    "id": "id",
    "source": lambda each: each.source_stream or each.stream,
    "task": "task_id",
    "kind": "task_kind",
    "reason": "reason",
    "attempts": "attempts",
    "dead since": "dead_at",
    "error": lambda each: (f"{each.error}: {each.error_text}" if each.error else each.error_text)[:200],
}
_CAUSES: Columns = {
    "count": "count",
    "reason": "reason",
    "source": lambda each: ", ".join(each.sources),
    "newest": "sample_id",
    "fingerprint": "fingerprint",
    "error": lambda each: f"{each.error}: {each.error_text}"[:200],
}
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Ids (or unique prefixes) of records or tasks; if none is given, all that match the options."),
]
RecordId = Annotated[str, typer.Argument(metavar="ID", help="The id (or a unique prefix) of a record or task.")]
Of = Annotated[
    str | None,
    typer.Option("--queue", help="A stream, message queue, task queue or service (default: all)."),
]
Cause = Annotated[
    str | None,
    typer.Option("--cause", help="Only those with this cause (the fingerprint that `dlq ls --causes` shows)."),
]
_TARGET_HELP = "The stream to return them to, if it cannot be told from the name of the dead-letter stream"
To = Annotated[str | None, typer.Option(help=f"{_TARGET_HELP}.")]
AllTo = Annotated[str | None, typer.Option(help=f"{_TARGET_HELP}; requires --queue.")]
MaxRedrives = Annotated[int, typer.Option(min=1, help="Skip those that were already redriven this often.")]
MaxLimit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many, oldest first.")]


@dataclass(frozen=True)
class DeadLetterChoice:
    """Which dead letters a command is about, as its options say."""

    of: str | None
    matching: DeadLetterFilter

    @classmethod
    def from_options(
        cls,
        of: Of = None,
        kind: Kind = None,
        reason: Reason = None,
        since: Since = None,
        until: Until = None,
        text: Text = None,
        cause: Cause = None,
    ) -> DeadLetterChoice:
        """Make it of the options."""
        before = None if until is None else max(0, until - 1)
        return cls(
            of,
            DeadLetterFilter(
                reason=reason, kind=kind, fingerprint=cause, since_ms=since or 0, until_ms=before, text=text
            ),
        )


Choice: TypeAlias = dict[str, DeadLetterFilter]
"""The dead letters that were found to be meant: by stream, those that match."""


def _streams(inspector: Inspector, of: str | None) -> list[str]:
    if of is not None:
        return [inspector.dead_letters.resolve(of)]
    return [each.stream for each in _all_streams(inspector)]


def _all_streams(inspector: Inspector) -> Iterator[DeadLetterStreamInfo]:
    return paged(lambda count, cursor: inspector.dead_letters.streams(limit=count, cursor=cursor), EVERYTHING)


def _letters(
    inspector: Inspector, choice: Choice, limit: int = EVERYTHING, size: int = _SHORT, page: int = EVERYTHING
) -> Iterator[DeadLetterInfo]:
    """Yield the dead letters that are meant, stream by stream and oldest first."""
    for stream, matching in choice.items():
        read = partial(inspector.dead_letters.page, stream, matching, newest_first=False, max_value_bytes=size)
        for letter in paged(lambda count, cursor, read=read: read(limit=min(count, page), cursor=cursor), limit):  # type: ignore[misc]
            yield letter
            limit -= 1


def _by_id(inspector: Inspector, streams: Sequence[str], given: str) -> tuple[str, str]:
    """Return stream and id of the record that an id, the id of its task, or the beginning of one of these means."""
    places, unfinished = dict[str, set[tuple[str, str]]](), list[str]()
    for stream in streams if is_id(given) else ():
        with suppress(NotFound):
            found = inspector.dead_letters.show(stream, given, max_value_bytes=64)
            places.setdefault(given, set()).add((found.stream, found.id))
    for stream in streams if given and not places else ():
        begun, is_complete = inspector.dead_letters.begin_with(stream, given)
        for name, record_id in begun.items():
            places.setdefault(name, set()).add((stream, record_id))
        unfinished += [] if is_complete else [stream]
    if unfinished and given not in places:  # an older one may also begin like this
        raise ConfigurationError(
            f"{unfinished[0]} has too many dead letters to look for {given!r} in all of them: pass the whole id of the "
            f"record, which {command_line('dlq ls --queue', unfinished[0])} shows"
        )
    selected = sorted(places[name := match_prefix(given, places, "dead letter")])
    if len(selected) > 1:
        first, second = selected[0][0], selected[1][0]
        raise ConfigurationError(
            f"{name!r} is in {len(selected)} streams, such as {first} and {second}: say which with --queue"
        )
    return selected[0]


def _chosen(
    inspector: Inspector, selection: DeadLetterChoice, ids: list[str] | None = None
) -> tuple[Choice, list[str]]:
    """Return what is meant, and the ids that no dead letter has."""
    streams, matching = _streams(inspector, selection.of), selection.matching
    if not ids:
        return dict.fromkeys(streams, matching), []
    choice, missing = Choice(), list[str]()
    for given in ids:
        try:
            stream, record_id = _by_id(inspector, streams, given)
        except NotFound:
            missing.append(given)
            continue
        before = choice.get(stream, matching)
        choice[stream] = replace(before, ids=before.ids | {record_id})
    return choice, missing


def _as_of_now(inspector: Inspector, choice: Choice) -> Choice:
    # What arrives while the question is open was neither counted nor confirmed.
    return {stream: inspector.dead_letters.as_of_now(stream, matching) for stream, matching in choice.items()}


def _of(choice: Choice) -> str:
    return f" of {', '.join(choice)}" if len(choice) <= _NAMED else f" of {len(choice)} streams"


def ls(
    server: Server,
    selection: DeadLetterChoice,
    causes: Annotated[bool, typer.Option("--causes", help="Group them by cause, most frequent first.")] = False,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    with server.inspector() as inspector:
        choice, _ = _chosen(inspector, selection)
        if causes:
            found = [inspector.dead_letters.failures(*each) for each in choice.items()]
            rows = sorted((each for some in found for each in some.groups), key=lambda each: -each.count)[:limit]
            print_rows(rows, _CAUSES, as_json=as_json, none="No dead letters.")
            for stream, some in zip(choice, found, strict=True):
                if not some.is_complete:
                    say(f"{stream} has too many dead letters: the counts are of the newest {some.read:,} that match")
            return
        letters = list(_letters(inspector, choice, limit))
        total = sum(inspector.dead_letters.count(stream)[0] for stream in choice)
    if as_json:
        print_rows(map(as_row, letters), {}, as_json=True)
        return
    print_rows(letters, _LETTERS, as_json=False)
    if not letters:
        say("No dead letters." if not total else f"None of the {total:,} dead letters match.")
    elif len(letters) < total:
        say(f"{len(letters):,} of {total:,}")


def show(server: Server, record: RecordId, of: Of = None, as_json: AsJson = False) -> None:
    """Print everything about one dead letter."""
    with server.inspector() as inspector:
        stream, record_id = _by_id(inspector, _streams(inspector, of), record)
        row = as_row(inspector.dead_letters.show(stream, record_id, max_value_bytes=_WHOLE))
    print_fields(row, as_json=as_json)


def redrive(
    server: Server,
    selection: DeadLetterChoice,
    ids: Ids = None,
    limit: MaxLimit = None,
    rate: Rate = None,
    max_redrives: MaxRedrives = 3,
    to: AllTo = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to where they came from; each moves in one atomic step."""
    if to is not None and selection.of is None:
        raise ConfigurationError(f"--to {to} requires --queue: the dead letters of all streams would go to {to!r}")
    with server.inspector() as inspector:
        choice, missing = _chosen(inspector, selection, ids)
        if selection.of is None and not ids:
            choice = _with_owner(inspector, choice)
        choice = _as_of_now(inspector, choice)
        redrive_all = partial(_redrive, inspector, choice, limit, to=to, per_second=rate, max_redrives=max_redrives)
        counts = redrive_all(dry_run=True)
        counts["redriven"] = counts["matched"] - counts["refused"]
        if not dry_run:
            if counts["redriven"] > 1:
                confirm(f"Redrive {counts['redriven']:,} dead letters{_of(choice)}?", yes=yes)
            counts = redrive_all(dry_run=False)
    text = f"{'would redrive' if dry_run else 'redrove'} {counts['redriven']:,} dead letters"
    if counts["refused"]:
        text += (
            f"; skipped {counts['refused']:,}: redriven {max_redrives} times already, or the task is open or finished"
        )
    _print_outcome({**counts, "is_dry_run": dry_run}, text, missing, as_json)


def _with_owner(inspector: Inspector, choice: Choice) -> Choice:
    owners = {each.stream: each.owner for each in _all_streams(inspector)}
    for stream in choice:
        if not owners.get(stream):
            hint = command_line("dlq redrive --queue", stream).rstrip("`") + " --to STREAM`"
            print_error(
                f"skipped {stream}, whose name does not tell which stream its dead letters belong to: use {hint}"
            )
    return {stream: matching for stream, matching in choice.items() if owners.get(stream)}


def _redrive(inspector: Inspector, choice: Choice, limit: int | None, **options: Any) -> dict[str, int]:
    counts, left = dict.fromkeys(("matched", "redriven", "refused"), 0), limit
    for stream, matching in choice.items():
        if left == 0:
            break
        report = inspector.dead_letters.redrive(stream, matching, limit=left, **options)
        counts = {name: count + getattr(report, name) for name, count in counts.items()}
        left = None if left is None else max(0, left - report.matched + report.refused)
    return counts


def edit(
    server: Server,
    record: RecordId,
    payload: Annotated[
        str | None, typer.Option(help="The new payload as JSON (default: edit the current one in $EDITOR).")
    ] = None,
    of: Of = None,
    to: To = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Redrive one dead letter with a changed payload."""
    with server.inspector() as inspector:
        stream, record_id = _by_id(inspector, _streams(inspector, of), record)
        letter = inspector.dead_letters.show(stream, record_id, max_value_bytes=_WHOLE)
        value = _json(payload) if payload is not None else _edited(letter)
        confirm(f"Redrive {record_id} with this payload: {to_json(value)[:200]}?", yes=yes)
        new_id = inspector.dead_letters.redrive_edited(stream, record_id, value, to=to)
    print(to_json({"id": record_id, "new_id": new_id}) if as_json else f"redrove {record_id} as {new_id}")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload is not JSON: {error}") from None


def _edited(letter: DeadLetterInfo) -> Any:
    if not letter.is_editable:
        note = letter.payload.note or "JSON cannot represent all its values"
        remedy = "" if letter.payload.form in _UNEDITABLE else "; pass a new one with --payload"
        raise ConfigurationError(f"the payload of {letter.id} cannot be edited: {note}{remedy}")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        file = Path(folder) / "payload.json"
        file.write_text(to_json(letter.editable, indent=2) + "\n")
        if subprocess.run([*shlex.split(editor), str(file)], check=False).returncode:
            raise ConfigurationError(f"{editor} failed; nothing was changed")
        return _json(file.read_text())


def purge(
    server: Server,
    selection: DeadLetterChoice,
    ids: Ids = None,
    limit: MaxLimit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete dead letters."""
    with server.inspector() as inspector:
        choice, missing = _chosen(inspector, selection, ids)
        choice = _as_of_now(inspector, choice)
        purged = _purge(inspector, choice, limit, dry_run=True)
        if not dry_run and purged:
            confirm(f"Permanently delete {purged:,} dead letter{'s' * (purged > 1)}{_of(choice)}?", yes=yes)
            purged = _purge(inspector, choice, limit, dry_run=False)
    text = f"{'would delete' if dry_run else 'deleted'} {purged:,} dead letters"
    _print_outcome({"purged": purged, "is_dry_run": dry_run}, text, missing, as_json)


def _purge(inspector: Inspector, choice: Choice, limit: int | None, *, dry_run: bool) -> int:
    gone = 0
    for stream, matching in choice.items():
        if limit is None or gone < limit:
            left = None if limit is None else limit - gone
            gone += inspector.dead_letters.purge(stream, matching, limit=left, dry_run=dry_run)
    return gone


def export_(
    server: Server,
    selection: DeadLetterChoice,
    limit: MaxLimit = None,
    form: Annotated[Format, typer.Option("--format", help="The format of the table.")] = Format.CSV,
    output: Output = None,
) -> None:
    """Write dead letters as a table; cells that a spreadsheet would run as formulas are escaped."""
    with server.inspector() as inspector:
        choice, _ = _chosen(inspector, selection)
        letters = _letters(inspector, choice, EVERYTHING if limit is None else limit, _WHOLE, _WHOLE_BATCH)
        count = export(letters, form, output)
    if output is not None:
        say(f"wrote {count:,} dead letters to {output}")


def _print_outcome(counts: dict[str, object], text: str, missing: list[str], as_json: bool) -> None:
    print(to_json({**counts, **({"missing": missing} if missing else {})}) if as_json else text)
    if missing:
        print_error(f"no dead letter has the id {', '.join(missing)}; list them with `penstock dlq ls`")
        raise typer.Exit(NOT_FOUND)


app = group("Inspect, redrive, export and delete dead letters.")
seeds_app = group("Dead letters, under the command names of other queues.", hidden=True)
_NAMES: dict[str, tuple[str | None, Callable[..., None]]] = {
    "ls": ("list", ls),
    "show": ("inspect", show),
    "redrive": ("retry", redrive),
    "edit": (None, edit),
    "export": ("export", export_),
    "purge": ("purge", purge),
}
for _name, (_other, _function) in _NAMES.items():
    command(app, _name)(_function)
    if _other is not None:
        command(seeds_app, _other)(_function)
