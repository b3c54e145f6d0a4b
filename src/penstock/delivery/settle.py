"""Settles messages exactly once over connections that break: sends a script until it is known what came of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.errors import ConnectionLost
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

_TRIES = 3


async def settle(
    client: StreamClient, name: str, keys: Sequence[str], args: Sequence[bytes | str | int], ids: Collection[str],
    unheard: set[str],
) -> Reply:  # fmt: skip
    """Run a script that settles the ids and refuses those that are settled; return its answer.

    `unheard` receives the ids when a reply gets lost: a refusal of one of them then means that an earlier try settled
    it. They stay there when this raises, for the next call, and are the caller's to remove.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return await client.run(name, keys, args, Repeat.ONCE)
        except ConnectionLost:
            unheard.update(ids)
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
