"""Reads many keys in few writes, between which the server serves other clients, and streams page by page."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock import ids
from penstock.errors import ConnectionFailed, ConnectionLost, GroupLost, PenstockError, PermissionDenied, TransientError
from penstock.redis.aio import Connection, Reply
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.redis.retry import RETRYABLE
from penstock.redis.scripts import script
from penstock.redis.translate import ScriptMissing

Question: TypeAlias = tuple[str, Command]  # the key that decides which server is asked, and a command that only reads
ScriptCall: TypeAlias = tuple[Sequence[str], Sequence[bytes | str | int]]  # keys and arguments of a script
# The server executes the commands of one write without serving other clients in between.
_TOGETHER = 100
# As opposed to "access" to a key, which the user may lack for one stream and have for another.
_OF_A_COMMAND = re.compile(r"(?:to|can't) run ")
_SCAN_COUNT = 1_000


@dataclass(frozen=True, slots=True)
class PageLimits:
    """How many entries to read at once: few at first, more as long as they are small."""

    first: int
    largest: int
    most_bytes: int

    def after(self, found: int, size: int) -> int:
        """Return how many to read next, if the last ones were `found` entries of `size` bytes in all.

        At most twice as many, because the next ones may be larger.
        """
        return max(1, min(max(self.first, 2 * found), self.largest, found * self.most_bytes // max(1, size)))


PAGES = PageLimits(16, 128, 1 << 20)  # most callers want a few, and each may have a megabyte


def size_of(rows: Sequence[tuple[bytes, list[bytes]]]) -> int:
    """Return the number of bytes in the fields of entries."""
    return sum(len(value) for _, fields in rows for value in fields)


async def read_many(client: StreamClient, questions: Sequence[Question]) -> list[Reply]:
    """Send many commands; return the replies in order.

    A command that fails in the shared writes for a reason that passes (a slot that moved, a server that is gone) is
    sent again by itself, and raises what that raises. Any other error is returned instead of a reply.
    """
    replies: list[Reply] = [ConnectionLost("not asked yet")] * len(questions)
    by_connection: dict[int, tuple[Connection, list[int]]] = {}
    for index, (key, _) in enumerate(questions):
        connection = await client.connection(key)
        by_connection.setdefault(id(connection), (connection, []))[1].append(index)
    for connection, indexes in by_connection.values():
        try:
            answers = await connection.pipeline([questions[index][1] for index in indexes])
        except (ConnectionLost, ConnectionFailed):
            continue
        for index, answer in zip(indexes, answers, strict=True):
            replies[index] = answer
    for index, (key, command) in enumerate(questions):
        if isinstance(replies[index], RETRYABLE) and not isinstance(replies[index], ScriptMissing):
            try:
                replies[index] = await client.call(key, *command)
            except (ConnectionLost, ConnectionFailed):
                raise
            except PenstockError as error:
                replies[index] = error
    return replies


async def ask(client: StreamClient, questions: Sequence[Question]) -> list[Reply]:
    """Ask questions that only read; return the replies in their order, an error about a key in place of its reply.

    Raises what a server that is busy or loading says: it would look as if the keys did not exist.
    """
    replies: list[Reply] = []
    for start in range(0, len(questions), _TOGETHER):
        replies += await read_many(client, questions[start : start + _TOGETHER])
    for reply in replies:
        if isinstance(reply, TransientError) and not isinstance(reply, GroupLost | ScriptMissing):
            raise reply
    return replies


async def run_many(client: StreamClient, name: str, calls: Sequence[ScriptCall]) -> list[Reply]:
    """Run a script that only reads for many keys; return the replies as ask() does.

    Raises PermissionDenied if the user may not run the script at all.
    """
    wanted = script(name)
    questions: list[Question] = [(keys[0], ("EVALSHA", wanted.sha, len(keys), *keys, *args)) for keys, args in calls]
    replies = await ask(client, questions[:1])
    if replies and isinstance(replies[0], ScriptMissing):
        replies = await _with_script(client, name, questions[:1])
    replies += await ask(client, questions[1:])
    if any(isinstance(reply, ScriptMissing) for reply in replies):  # another node of a cluster
        replies = await _with_script(client, name, questions)
    for reply in replies:
        if isinstance(reply, PermissionDenied) and _OF_A_COMMAND.search(str(reply)):
            raise reply
    return replies


async def _with_script(client: StreamClient, name: str, questions: Sequence[Question]) -> list[Reply]:
    for connection in await client.to_masters():
        await client.load(connection, [script(name)])
    return await ask(client, questions)


def number_or(reply: Reply, default: int = 0) -> int:
    """Return a reply that is a number; the default for an error about the key."""
    return default if isinstance(reply, PenstockError) or reply is None else int(reply)


def escaped(text: str) -> str:
    """Return a text as a glob pattern that matches nothing else."""
    return re.sub(r"([\[\]*?\\^])", r"\\\1", text)


async def stream_keys(client: StreamClient, pattern: str) -> list[str]:
    """Return the keys of all streams that a glob pattern matches, sorted."""
    found: set[str] = set()
    for connection in await client.to_masters():
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")
            cursor, keys = await connection.call(*command)
            found.update(key.decode(errors="replace") for key in keys)
            if cursor == b"0":
                break
    return sorted(found)


async def scan(client: StreamClient, command: str, key: str, pattern: str, most_steps: int) -> tuple[list[bytes], bool]:
    """Return what HSCAN or ZSCAN finds in steps of a thousand members, and whether that is all."""
    cursor, found = b"0", list[bytes]()
    for _ in range(most_steps):
        cursor, some = await client.call(key, command, key, cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
        found += some
        if cursor == b"0":
            return found, True
    return found, False


async def newest_id(client: StreamClient, key: str) -> str:
    """Return the id of the newest entry of the stream; 0-0 = it is empty."""
    rows = await client.call(key, "XREVRANGE", key, "+", "-", "COUNT", 1)
    return rows[0][0].decode() if rows else ids.ZERO


async def pages(
    client: StreamClient,
    key: str,
    start: str = "-",
    end: str = "+",
    *,
    most: int | None = None,
    newest_first: bool = False,
) -> AsyncIterator[list[tuple[bytes, list[bytes]]]]:
    """Yield the entries of a stream from one id to another, in pages that grow as long as their entries are small.

    With `newest_first`, `start` is the greater id.
    """
    command, page, left = "XREVRANGE" if newest_first else "XRANGE", PAGES.first, most or sys.maxsize
    while left > 0:
        count = min(page, left)
        rows = await client.call(key, command, key, start, end, "COUNT", count)
        if rows:
            yield rows
        last = rows[-1][0].decode() if rows else ids.LAST
        # The server takes no range behind the last id.
        if len(rows) < count or (last == ids.LAST and not newest_first):
            return
        start, left = f"({last}", left - len(rows)
        page = PAGES.after(len(rows), size_of(rows))
