"""What Penstock promises of its speed, as ratios to peers of the same run; pure, without a server."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from bench.figures import Samples
from bench.roster import (
    EACH_PEERS,
    LIMIT,
    LIST_QUEUE,
    LIST_QUEUE_SYNC,
    PENSTOCK,
    PENSTOCK_EACH,
    QUEUE,
    QUEUE_SYNC,
)


@dataclass(frozen=True)
class Target:
    """A bound on a figure of one peer, or on its ratio to the best of the peers it is compared with."""

    name: str
    test: str
    figure: str
    subject: str
    direction: Literal["at least", "at most"]
    bound: float
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """How a run stands to a target; `value` is None where the run did not measure it."""

    target: Target
    value: float | None = None
    low: float = 0.0
    high: float = 0.0
    reference: str = ""
    rounds: int = 0
    """How many rounds the value rests on."""
    is_noisy: bool = False
    """Whether it rests on disturbed rounds alone."""

    @property
    def is_met(self) -> bool | None:
        """Tells whether the target is met, or None where it was not measured.

        A count of commands is rounded to one decimal: it holds what the worker does on timers as well, a few commands
        in the whole window, which say nothing about the cost of a message.
        """
        if self.value is None:
            return None
        if self.target.direction == "at least":
            return round(self.value, 2) >= self.target.bound
        return round(self.value, 2 if self.target.references else 1) <= self.target.bound


TARGETS = (
    Target("publish, one by one", "publish-one", "rate", PENSTOCK, "at least", 0.5, (LIMIT,)),
    Target("publish, 50 callers", "publish-50", "rate", PENSTOCK, "at least", 0.5, (LIMIT,)),
    Target("publish, bulk", "publish-bulk", "rate", PENSTOCK, "at least", 0.6, (LIMIT,)),
    Target("drain, batch handler", "drain-batch", "rate", PENSTOCK, "at least", 0.6, (LIMIT,)),
    Target("drain, batch handler", "drain-batch", "rate", PENSTOCK, "at least", 3.0, ("redis-stream-queue",)),
    Target("drain, message handler", "drain-each", "rate", PENSTOCK_EACH, "at least", 15.0, EACH_PEERS),
    Target("p50 latency, batch handler", "latency", "p50_ms", PENSTOCK, "at most", 1.5, (LIMIT,)),
    Target("p50 latency, message handler", "latency", "p50_ms", PENSTOCK_EACH, "at most", 1.5, (LIMIT,)),
    Target("commands sent, batch handler", "latency", "sent", PENSTOCK, "at most", 3.0),
    Target("commands sent, message handler", "latency", "sent", PENSTOCK_EACH, "at most", 3.0),
    Target("cost, 200,000 over 10,000 pending", "pel", "cost_ratio", PENSTOCK, "at most", 1.25),
    Target("queue, publish", "queue-publish", "rate", QUEUE, "at least", 5.0, (LIST_QUEUE,)),
    Target("queue, publish", "queue-publish", "rate", QUEUE_SYNC, "at least", 5.0, (LIST_QUEUE_SYNC,)),
    Target("queue, consume", "queue-consume", "rate", QUEUE, "at least", 5.0, (LIST_QUEUE,)),
    Target("queue, consume", "queue-consume", "rate", QUEUE_SYNC, "at least", 5.0, (LIST_QUEUE_SYNC,)),
    Target("queue, idle p50 in ms", "queue-latency", "p50_ms", QUEUE, "at most", 5.0),
    Target("queue, idle p50 in ms", "queue-latency", "p50_ms", QUEUE_SYNC, "at most", 5.0),
    Target("queue, bytes a byte in flight", "queue-memory", "memory_ratio", QUEUE, "at most", 1.3),
    Target("queue, bytes a byte in flight", "queue-memory", "memory_ratio", QUEUE_SYNC, "at most", 1.3),
)


def judge(target: Target, samples: Samples) -> Verdict:
    """Returns the median over rounds of the value inside each round, with the lowest and the highest.

    Disturbed rounds count only where no other is left.
    """
    reference = _best_reference(target, samples)
    if target.references and reference is None:
        return Verdict(target)
    quiet = _values(target, samples, reference, with_noisy=False)
    values = quiet or _values(target, samples, reference, with_noisy=True)
    if not values:
        return Verdict(target)
    return Verdict(
        target,
        statistics.median(values),
        min(values),
        max(values),
        reference or "",
        rounds=len(values),
        is_noisy=not quiet,
    )


def _values(target: Target, samples: Samples, reference: str | None, *, with_noisy: bool) -> list[float]:
    own = samples.by_round(target.test, target.subject, target.figure, with_noisy=with_noisy)
    if reference is None:
        return list(own.values())
    theirs = samples.by_round(target.test, reference, target.figure, with_noisy=with_noisy)
    return [own[number] / theirs[number] for number in own if number in theirs]


def _best_reference(target: Target, samples: Samples) -> str | None:
    medians = {name: samples.median(target.test, name, target.figure) for name in target.references}
    measured = {name: value for name, value in medians.items() if value is not None}
    return max(measured, key=lambda name: measured[name]) if measured else None
