"""A balanced service as the fault tests see it: streams that are handed out, who owns which, owners that are killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from tests.balancer.stage import GROUP, LASTING, LBS, SEP
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess

Start = Callable[..., WorkerProcess]


def add(raw: redis.Redis, count: int, prefix: str = "session") -> None:
    with raw.pipeline(transaction=False) as burst:
        for number in range(count):
            burst.xadd(LBS, {"lbs-input": json.dumps({"DataStreamName": f"{prefix}-{number}", "Info": None})})
        burst.execute()


def owners(raw: redis.Redis) -> dict[str, str]:
    """Returns the holder of each lock, by the data stream."""
    keys = list(raw.scan_iter(match=f"*{SEP}*", count=5_000))
    values = raw.mget(keys) if keys else []
    return {
        key.decode().split(SEP)[0]: value.decode() for key, value in zip(keys, values, strict=True) if value is not None
    }


def counts(raw: redis.Redis, names: list[str]) -> list[int]:
    held = list(owners(raw).values())
    return [held.count(f"redis-consumer-{name}") for name in names]


def outlive(raw: redis.Redis, name: str) -> None:
    """Lets the time of all locks pass at once, which only this frozen process holds: those of others never run out."""
    raw.hdel("{svc-input}:peers", f"redis-consumer-{name}")
    for row in raw.xpending_range(LBS, GROUP, "-", "+", 1_000):
        raw.xclaim(LBS, GROUP, row["consumer"], 0, [row["message_id"]], idle=2 * LASTING["lease_ms"], justid=True)
    for key in raw.scan_iter(match=f"*{SEP}*"):
        raw.pexpire(key, 1)


def gained(process: WorkerProcess) -> list[str]:
    """Returns the streams that a process was given or claimed, once for each time."""
    return [line["stream"] for kind in ("StreamAdded", "claimed") for line in process.said(kind)]


def lost(process: WorkerProcess) -> list[str]:
    return [line["stream"] for line in process.said("StreamDisowned")]


def owned_now(process: WorkerProcess) -> list[str]:
    """Returns what a living process believes to own, in order; a stream that it was given twice comes twice."""
    return sorted((Counter(gained(process)) - Counter(lost(process))).elements())


def tokens(process: WorkerProcess) -> dict[str, int]:
    """Returns the newest token that a process was given for each stream."""
    found: dict[str, int] = {}
    for line in [*process.said("StreamAdded"), *process.said("claimed")]:
        found[line["stream"]] = max(line["token"], found.get(line["stream"], 0))
    return found


def agree(raw: redis.Redis, processes: dict[str, WorkerProcess], streams: int) -> bool:
    """Tells whether each stream has one owner, which knows it, as the locks have it and as the tokens do."""
    owned = [(stream, name) for name, process in processes.items() for stream in owned_now(process)]
    if len(owned) != streams:
        return False
    given = {name: tokens(process) for name, process in processes.items()}
    newest = {stream: max(given, key=lambda name: given[name].get(stream, 0)) for stream, _ in owned}
    locks = {stream: holder.removeprefix("redis-consumer-") for stream, holder in owners(raw).items()}
    return len(newest) == streams and dict(owned) == newest == locks


def take_over(
    raw: redis.Redis, peer: Start, rounds: int, streams: int, half: str, measured: Callable[[str, object], None],
    settings: dict[str, Any] | None = None, is_deaf: bool = False,
) -> tuple[list[float], list[str]]:  # fmt: skip
    """Kills owners of all streams, one after the other; returns how long each take-over took, and what the living lost."""
    took: list[float] = []
    losses: list[str] = []
    add(raw, streams)
    job: dict[str, Any] = {"half": half, "settings": settings or {}, "deaf": is_deaf}
    victim = peer("victim-0", **job)
    eventually(lambda: len(owners(raw)) == streams, "the first owner has all streams", 60, victim.story)
    for number in range(rounds):
        # The peers join when all is owned: they own nothing, and the next victim is the one that takes over all.
        others = [peer(f"{number}-{letter}", **job) for letter in "ab"]
        killed_s = time.monotonic()
        victim.kill()
        eventually(
            lambda others=others: sum(len(gained(other)) for other in others) >= streams,
            "all streams have an owner again", 60, others[0].story,
        )  # fmt: skip
        at_s = max(line["at"] for other in others for line in [*other.said("claimed"), *other.said("StreamAdded")])
        took.append(at_s - killed_s)
        named = {f"{number}-{letter}": other for letter, other in zip("ab", others, strict=True)}
        # A process that the machine starves for longer than a lock lives may lose streams, and is told a moment later.
        eventually(lambda named=named: agree(raw, named, streams), "all agree on the owners", 60, others[0].story)
        losses += [*lost(others[0]), *lost(others[1])]
        # One of them dies, and the other one is the next victim, with all streams.
        victim, leaver = others[0], others[1]
        leaver.close()
        eventually(lambda victim=victim: len(owned_now(victim)) == streams, "one has all", 60, victim.story)
    measured("worst take-over in s", round(max(took), 2))
    measured("streams that live owners lost", len(losses))
    return took, losses
