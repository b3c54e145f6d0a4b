"""The peers: where they run, how many tasks are enough for a measurement, and how their end is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import redis

from bench.environments import OWN
from bench.tasks.peers_names import NAME

Count = Callable[[redis.Redis], int]


@dataclass(frozen=True)
class Peer:
    """A task queue that stores results."""

    name: str
    environment: str
    share: float  # of the number of tasks that Penstock gets: the slow ones are measured on fewer
    unfinished: Count
    results: Count


def _keys(pattern: str) -> Count:
    return lambda client: sum(1 for _ in client.scan_iter(pattern, count=10_000))


PEERS = (
    Peer(
        "penstock", OWN, 1.0,
        lambda client: int(client.hlen(f"{{{NAME}}}:index")), lambda client: int(client.hlen(f"{{{NAME}}}:done")),
    ),
    Peer(
        "taskiq", "taskiq", 0.05,
        lambda client: int(client.xlen(NAME)) - _acked(client), lambda client: client.dbsize() - 1,
    ),
    Peer("arq", "arq", 0.05, lambda client: int(client.zcard("arq:queue")), _keys("arq:result:*")),
    Peer("saq", "saq", 0.05, lambda client: int(client.zcard(f"saq:{NAME}:incomplete")), _keys(f"saq:job:{NAME}:*")),
    Peer(
        "dramatiq", "dramatiq", 0.05,
        lambda client: int(client.hlen("dramatiq:default.msgs")),
        lambda client: client.dbsize() - _keys("dramatiq:*")(client),
    ),
)  # fmt: skip


def _acked(client: redis.Redis) -> int:
    # Entries stay in the stream: what the group was handed, without what is pending.
    [group] = client.xinfo_groups(NAME)
    return int(group["entries-read"] or 0) - int(group["pending"])
