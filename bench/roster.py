"""The peers: which module and interpreter each has, which tests it takes part in and how fast it is expected to be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench import backlog
from bench.environments import OWN
from bench.peers.params import GROUP, STREAM

PUBLISHING = ("publish-one", "publish-50", "publish-bulk")
STREAM_TESTS = (*PUBLISHING, "drain-batch", "drain-each", "latency", "pel")
QUEUE_TESTS = ("queue-publish", "queue-consume", "queue-latency", "queue-memory")
TESTS = (*STREAM_TESTS, *QUEUE_TESTS)

_PENDING = backlog.stream_group(STREAM, GROUP)


@dataclass(frozen=True)
class Pace:
    """Messages a second to expect, which turns the length of a window into a number of messages."""

    one: int
    fifty: int
    drain: int
    bulk: int = 0
    """0 where the peer has no bulk call."""


@dataclass(frozen=True)
class Peer:
    """One system under test."""

    name: str
    adapter: str
    environment: str
    pace: Pace
    tests: tuple[str, ...]
    note: str
    variant: str = ""
    unfinished: backlog.Backlog = _PENDING


def _peers(*peers: Peer) -> dict[str, Peer]:
    return {peer.name: peer for peer in peers}


PENSTOCK, PENSTOCK_EACH, LIMIT = "penstock", "penstock-each", "limit:proto"
QUEUE, QUEUE_SYNC = "penstock-queue", "penstock-queue-sync"
LIST_QUEUE, LIST_QUEUE_SYNC = "redis-message-queue", "redis-message-queue-sync"
_UNFINISHED_IN_LISTS = backlog.size_of("LLEN", f"{STREAM}::processing")
_UNFINISHED_IN_QUEUE = backlog.size_of("XLEN", STREAM)

PEERS = _peers(
    Peer(
        LIMIT,
        "limit",
        OWN,
        Pace(one=20_000, fifty=150_000, bulk=200_000, drain=250_000),
        (*PUBLISHING, "drain-batch", "latency", "pel"),
        "hand-written asyncio.Protocol on hiredis, uvloop, COUNT 1000, prefetch; no safety",
    ),
    Peer(
        PENSTOCK,
        "penstock",
        OWN,
        Pace(one=10_000, fifty=80_000, bulk=120_000, drain=150_000),
        (*PUBLISHING, "drain-batch", "latency", "pel"),
        "batch handler, default settings, uvloop",
        variant="batch",
    ),
    Peer(
        PENSTOCK_EACH,
        "penstock",
        OWN,
        Pace(one=10_000, fifty=80_000, bulk=120_000, drain=60_000),
        ("drain-each", "latency"),
        "message handler, default settings, uvloop",
        variant="each",
    ),
    Peer(
        "redis-stream-queue",
        "redis_stream_queue",
        "redis-stream-queue",
        Pace(one=5_000, fifty=10_000, bulk=35_000, drain=40_000),
        (*PUBLISHING, "drain-batch", "latency", "pel"),
        "batch handler",
    ),
    Peer(
        "faststream",
        "faststream",
        "faststream",
        Pace(one=5_000, fifty=10_000, bulk=25_000, drain=3_500),
        (*PUBLISHING, "drain-each", "latency"),
        "one message a call",
        variant="each",
    ),
    Peer(
        "faststream-batch",
        "faststream",
        "faststream",
        Pace(one=5_000, fifty=10_000, bulk=25_000, drain=25_000),
        ("drain-batch", "latency"),
        "batch subscriber",
        variant="batch",
    ),
    Peer(
        "redis-py",
        "redis_py",
        OWN,
        Pace(one=5_000, fifty=9_000, bulk=28_000, drain=45_000),
        (*PUBLISHING, "drain-batch", "latency"),
        "plain commands as most people write them; no safety",
    ),
    Peer(
        "taskiq",
        "taskiq",
        "taskiq",
        Pace(one=1_700, fifty=2_400, drain=2_000),
        ("publish-one", "publish-50", "drain-each", "latency"),
        "stream broker, one process",
    ),
    Peer(
        "dramatiq",
        "dramatiq",
        "dramatiq",
        Pace(one=4_000, fifty=4_000, drain=2_000),
        ("publish-one", "publish-50", "drain-each", "latency"),
        "one process, 8 threads",
        # dramatiq keeps the body of every message that is not acknowledged in this hash
        unfinished=backlog.size_of("HLEN", "dramatiq:default.msgs"),
    ),
    Peer(
        "huey",
        "huey",
        "huey",
        Pace(one=8_000, fifty=6_000, drain=1_800),
        ("publish-one", "publish-50", "drain-each", "latency"),
        "8 threads; pops before it runs, so a crash loses messages",
        unfinished=backlog.size_of("LLEN", f"huey.redis.{STREAM}"),
    ),
    Peer(
        "saq",
        "saq",
        "saq",
        Pace(one=2_500, fifty=5_000, drain=1_500),
        ("publish-one", "publish-50", "drain-each", "latency"),
        "10 jobs at once",
        unfinished=backlog.size_of("ZCARD", f"saq:{STREAM}:incomplete"),
    ),
    Peer(
        "arq",
        "arq",
        "arq",
        Pace(one=2_000, fifty=2_800, drain=220),
        ("publish-one", "publish-50", "drain-each", "latency"),
        "10 jobs at once, polls every 0.5 s",
        unfinished=backlog.size_of("ZCARD", "arq:queue"),
    ),
    Peer(
        "rq",
        "rq",
        "rq",
        Pace(one=1_400, fifty=1_400, bulk=5_000, drain=300),
        (*PUBLISHING, "drain-each", "latency"),
        "worker without a fork for each job",
        unfinished=backlog.size_of("LLEN", f"rq:queue:{STREAM}"),
    ),
    Peer(
        QUEUE,
        "penstock_queue",
        OWN,
        Pace(one=6_000, fifty=20_000, drain=5_000),
        QUEUE_TESTS,
        "RedisMessageQueue, default settings, asyncio",
        variant="async",
        unfinished=_UNFINISHED_IN_QUEUE,
    ),
    Peer(
        LIST_QUEUE,
        "redis_message_queue",
        LIST_QUEUE,
        Pace(one=1_500, fifty=2_500, drain=800),
        QUEUE_TESTS,
        "RedisMessageQueue of 5.0, default settings, asyncio",
        variant="async",
        unfinished=_UNFINISHED_IN_LISTS,
    ),
    Peer(
        QUEUE_SYNC,
        "penstock_queue",
        OWN,
        Pace(one=10_000, fifty=20_000, drain=7_000),
        QUEUE_TESTS,
        "the same without asyncio",
        variant="sync",
        unfinished=_UNFINISHED_IN_QUEUE,
    ),
    Peer(
        LIST_QUEUE_SYNC,
        "redis_message_queue",
        LIST_QUEUE,
        Pace(one=2_000, fifty=2_500, drain=1_000),
        QUEUE_TESTS,
        "the same without asyncio",
        variant="sync",
        unfinished=_UNFINISHED_IN_LISTS,
    ),
)

QUEUE_PEERS = (QUEUE, LIST_QUEUE, QUEUE_SYNC, LIST_QUEUE_SYNC)
DEFAULT_PEERS = (LIMIT, PENSTOCK, PENSTOCK_EACH, "redis-stream-queue", "faststream")
EACH_PEERS = tuple(name for name, peer in PEERS.items() if peer.environment != OWN and "drain-each" in peer.tests)
"""The foreign peers that hand their messages to the handler one by one."""


def at_commit(peer: Peer, commit: str) -> Peer:
    """Returns Penstock as it was at a commit, to be measured in turns with what it is now."""
    return replace(peer, name=f"{peer.name}@{commit}", environment=f"{OWN}@{commit}", note=f"the same at {commit}")
