"""Drops messages that nobody has been handed yet, with their deduplication keys."""

from __future__ import annotations

import secrets

from penstock import envelope
from penstock.queue.queue_consumer import GROUP
from penstock.redis.client import StreamClient
from penstock.redis.retry import OPERATION_TTL_S, Repeat


async def drop_unread(client: StreamClient, queue: str, count: int, at_least: int = 0) -> list[str] | None:
    """Drop the oldest messages that were never handed out, up to so many; return their ids, None = there are none.

    Nothing is dropped from a queue of fewer than `at_least` messages. An empty list says that there was nothing left to
    do, for somebody else was faster: it is for the caller to look again.
    """
    keys = client.keys(queue)
    oldest, _ = await client.run("queue/unread", [keys.stream], [GROUP, count, 1, ""], Repeat.READ)
    if not oldest:
        has_room = at_least and await client.call(keys.stream, "XLEN", keys.stream) < at_least
        return [] if has_room else None
    markers = [keys.dedup(envelope.text(key)) for _, key in oldest if key]
    args: list[bytes | str | int] = [GROUP, at_least, OPERATION_TTL_S]
    for entry_id, key in oldest:
        args += (entry_id, int(bool(key)))
    operation = keys.operation(secrets.token_hex(8))
    dropped: bytes = await client.run("queue/drop", [keys.stream, operation, *markers], args, Repeat.IDEMPOTENT)
    return dropped.decode().split()
