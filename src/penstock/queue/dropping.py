"""Drops messages that nobody has been handed yet, with their deduplication keys."""

from __future__ import annotations

from penstock.queue.desk import GROUP
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

_TRIES = 10


async def drop_unread(client: StreamClient, queue: str, count: int) -> list[str]:
    """Drop the oldest messages that were never handed out, up to so many; return their ids."""
    keys = client.keys(queue)
    for _ in range(_TRIES):
        oldest = await client.run("unread", [keys.stream], [GROUP, count, 1], Repeat.READ)
        if not oldest:
            return []
        markers = [keys.dedup(key.decode()) for _, key in oldest if key]
        args: list[bytes | str | int] = [GROUP]
        for entry_id, key in oldest:
            args += (entry_id, int(bool(key)))
        dropped = await client.run("drop", [keys.stream, *markers], args, Repeat.IDEMPOTENT)
        if dropped:
            return [entry_id.decode() for entry_id in dropped]
        # Consumers were faster: look again.
    return []
