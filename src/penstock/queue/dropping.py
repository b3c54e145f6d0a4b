"""Drops messages that nobody has been handed yet, with their deduplication keys."""

from __future__ import annotations

import secrets

from penstock.queue.desk import GROUP
from penstock.redis.client import StreamClient
from penstock.redis.retry import OPERATION_TTL_S, Repeat

_TRIES = 10


async def drop_unread(client: StreamClient, queue: str, count: int) -> list[str]:
    """Drop the oldest messages that were never handed out, up to so many; return their ids."""
    keys = client.keys(queue)
    for _ in range(_TRIES):
        oldest = await client.run("unread", [keys.stream], [GROUP, count, 1], Repeat.READ)
        if not oldest:
            return []
        markers = [keys.dedup(key.decode()) for _, key in oldest if key]
        args: list[bytes | str | int] = [GROUP, OPERATION_TTL_S]
        for entry_id, key in oldest:
            args += (entry_id, int(bool(key)))
        operation = keys.operation(secrets.token_hex(8))
        dropped: bytes = await client.run("drop", [keys.stream, operation, *markers], args, Repeat.IDEMPOTENT)
        if dropped:
            return dropped.decode().split(" ")
        # Consumers were faster: look again.
    return []
