"""Entries of a stream and scheduled tasks, as much of each as is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.ops.payloads import Row
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

SCANNED = 1_000  # entries of one page that are looked at for a text
LONGEST_TRACEBACK = 32_000  # bytes: failures are compared by the end of their tracebacks
LONGEST_KIND = 513  # bytes that a scheduled task begins with: its kind and a zero
_DEAD_LETTER_FIELD = b"dlq_"


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Which entries, and what of them; with `newest_first`, `start` is the greater end."""

    start: str
    end: str
    limit: int
    max_value_bytes: int
    newest_first: bool = False
    text: str = ""  # that some value contains
    fields: str = ""  # what the names of the fields to read begin with
    ids: Sequence[str] = ()  # of the entries to read instead of the range


async def read_entries(client: StreamClient, key: str, wanted: EntryRange) -> tuple[list[Row], str]:
    """Return entries, and the id behind which the rest follows; '' = there is no more.

    The server cuts the values. Where entries are huge, one is read as it is and cut here: Lua would copy it, and hold
    the server up for ten times as long as it takes to send it.
    """
    args: list[str | int] = [
        wanted.start, wanted.end, wanted.limit, int(wanted.newest_first), wanted.max_value_bytes, wanted.text,
        SCANNED, wanted.fields, *wanted.ids,
    ]  # fmt: skip
    answer = await client.run("ops/entries", [key], args, Repeat.READ)
    if answer:
        return answer[0], answer[1].decode()
    command = "XREVRANGE" if wanted.newest_first else "XRANGE"
    first, last = (wanted.ids[0],) * 2 if wanted.ids else (wanted.start, wanted.end)
    rows = await client.call(key, command, key, first, last, "COUNT", 1)
    if not rows and wanted.ids:  # that entry is gone
        return [], wanted.ids[0]
    if not rows:
        return [], ""
    entry_id, fields = rows[0]
    is_wanted = any(wanted.text.encode() in value for value in fields[1::2])
    return [_cut(entry_id, fields, wanted.max_value_bytes, wanted.fields)] if is_wanted else [], entry_id.decode()


async def read_bodies(
    client: StreamClient, key: str, task_ids: Sequence[str], max_value_bytes: int
) -> list[tuple[bytes, int]]:
    """Return the beginnings of scheduled tasks with their sizes, of the first ids only where tasks are large."""
    found = await client.run("ops/bodies", [key], [max_value_bytes, *task_ids], Repeat.READ) if task_ids else []
    return [(body[0], int(body[1])) if body else (b"", 0) for body in found]


async def read_entry(client: StreamClient, key: str, entry_id: str, max_value_bytes: int) -> Row | None:
    """Return one entry; None = it is not there."""
    rows = await client.call(key, "XRANGE", key, entry_id, entry_id, "COUNT", 1)
    return _cut(rows[0][0], rows[0][1], max_value_bytes) if rows else None


def _cut(entry_id: bytes, fields: Sequence[bytes], max_value_bytes: int, prefix: str = "") -> Row:
    row: list[bytes | int] = [entry_id]
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name.startswith(prefix.encode()):
            is_about_failure = name.startswith(_DEAD_LETTER_FIELD)
            kept = max(max_value_bytes, LONGEST_TRACEBACK) if is_about_failure else max_value_bytes
            row += [name, value[:kept], len(value)]
    return row
