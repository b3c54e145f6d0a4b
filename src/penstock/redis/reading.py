"""Reads many keys with one write for each server, and streams page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from penstock import ids
from penstock.errors import ConnectionFailed, ConnectionLost, PenstockError
from penstock.redis.aio import Connection, Reply
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.redis.retry import PASSING
from penstock.redis.translate import ScriptMissing

Question: TypeAlias = tuple[str, Command]  # the key that decides which server is asked, and a command that only reads
_SCAN_COUNT = 1_000
_FIRST_PAGE, _LARGEST_PAGE = 16, 128  # entries: most callers want a few, and each may have a megabyte
_PAGE_BYTES = 1 << 20


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
        if isinstance(replies[index], PASSING) and not isinstance(replies[index], ScriptMissing):
            try:
                replies[index] = await client.call(key, *command)
            except (ConnectionLost, ConnectionFailed):
                raise
            except PenstockError as error:
                replies[index] = error
    return replies


async def read_all(client: StreamClient, key: str, commands: Sequence[Command]) -> list[Reply]:
    """Send commands to the server of a key in one write; raise the first error among the replies."""
    replies = await read_many(client, [(key, command) for command in commands])
    for reply in replies:
        if isinstance(reply, PenstockError):
            raise reply
    return replies


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


async def newest_id(client: StreamClient, key: str) -> str:
    """Return the id of the newest entry of the stream; 0-0 = it is empty."""
    rows = await client.call(key, "XREVRANGE", key, "+", "-", "COUNT", 1)
    return rows[0][0].decode() if rows else ids.ZERO


async def pages(
    client: StreamClient, key: str, start: str = "-", end: str = "+"
) -> AsyncIterator[list[tuple[bytes, list[bytes]]]]:
    """Yield the entries of a stream from one id to another, in pages that grow as long as their entries are small."""
    count = _FIRST_PAGE
    while True:
        rows = await client.call(key, "XRANGE", key, start, end, "COUNT", count)
        if rows:
            yield rows
        last = rows[-1][0].decode() if rows else ids.LAST
        if len(rows) < count or last == ids.LAST:  # the server takes no range behind the last id
            return
        start, size = f"({last}", sum(len(value) for _, fields in rows for value in fields)
        count = max(1, min(2 * count, _LARGEST_PAGE, count * _PAGE_BYTES // max(1, size)))
