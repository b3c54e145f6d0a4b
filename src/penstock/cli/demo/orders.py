"""What the demo is about: orders of a shop, most of them good, and the plan of what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

STREAM = "orders"
GROUP = "shop"
BY_SPARK = "orders_by_spark"  # where Spark writes what it read
JOURNAL = "journal"  # a stream to which a handler adds one line whenever it has handled an order

WORKERS = 2
CONCURRENCY = 16
LEASE_MS = 2_000
MAX_DELIVERIES = 3
RETRY_DELAY_MS = 200
POISON = "poison"
FATAL = "fatal"
GOOD = "good"

_WORK_S = 5.0  # so long the workers are busy, whatever the number of orders
_POISONED = 3
_LATEST_KILL = 40_000  # the time may be too short for more, and the kill must not wait for them
_MIN_MS, _LONGEST_MS = 4.0, 200.0


@dataclass(frozen=True)
class Plan:
    """Everything about a run that chance decides, decided beforehand; orders are numbered from 0."""

    messages: int
    seed: int
    poisoned: frozenset[int]  # the handler raises, always
    fatal: int  # the handler says that retrying is pointless
    scrambled: int  # the payload is not JSON
    killed_worker: int  # number of the worker that is killed
    kill_after: int  # settled orders
    mean_work_ms: float

    def order(self, number: int) -> dict[str, Any]:
        """Return the payload of an order."""
        kind = POISON if number in self.poisoned else FATAL if number == self.fatal else GOOD
        # An order takes as long in every run with the same seed, whoever handles it.
        work_ms = self.mean_work_ms * random.Random(self.seed * 1_000_003 + number).uniform(0.5, 1.5)
        return {"order": number, "kind": kind, "work_ms": round(work_ms, 2)}


def make_plan(messages: int, seed: int) -> Plan:
    """Decide what goes wrong."""
    rng = random.Random(seed)
    *poisoned, fatal, scrambled = rng.sample(range(messages), _POISONED + 2)
    mean_work_ms = _WORK_S * 1000 * WORKERS * CONCURRENCY / messages
    return Plan(
        messages=messages,
        seed=seed,
        poisoned=frozenset(poisoned),
        fatal=fatal,
        scrambled=scrambled,
        killed_worker=rng.randint(1, WORKERS),
        kill_after=round(min(messages, _LATEST_KILL) * rng.uniform(0.3, 0.4)),
        mean_work_ms=min(max(mean_work_ms, _MIN_MS), _LONGEST_MS),
    )


class Scrambler:
    """A serializer as a broken producer might have: nobody can decode what it writes."""

    def encode(self, data: object) -> bytes:
        """Return bytes that are no JSON."""
        return b"\xff\x00" + repr(data).encode()

    def decode(self, raw: bytes) -> object:
        """Return the bytes."""
        return raw
