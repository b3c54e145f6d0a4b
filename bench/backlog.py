"""How the driver sees that a peer has acknowledged everything: one function a kind of queue.

They are asked only when every message was handled, so what a stream has not delivered yet does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import redis

Backlog = Callable[[redis.Redis], int]


def stream_group(stream: str, group: str) -> Backlog:
    """Counts the pending entries of a group."""

    def pending(client: redis.Redis) -> int:
        for info in client.xinfo_groups(stream):
            if info["name"] == group.encode():
                return int(info["pending"])
        return 0

    return pending


def size_of(command: str, key: str) -> Backlog:
    """Asks a command such as LLEN, ZCARD or HLEN about the key in which a peer keeps unfinished messages."""

    def size(client: redis.Redis) -> int:
        return int(client.execute_command(command, key))  # type: ignore[no-untyped-call]

    return size
