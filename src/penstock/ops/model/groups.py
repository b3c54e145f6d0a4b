"""Who reads a stream: how far groups and other readers have come, consumers, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.model import Lag
from penstock.ops.model.streams import GroupKind
from penstock.queue.model import GROUP as QUEUE_GROUP

_DEAD_AFTER_MS, _DEAD_AFTER_IN_QUEUES_MS = 60_000, 360_000
MAX_CONSUMERS = 2_000  # of one group: to list more takes the server longer than it may be held up


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, and when it will have caught up.

    `is_exact` is false where `count` is an upper bound: counting to the end would keep the server busy. The rates are
    None until two samples with exact lags were taken.
    """

    stream: str
    group: str
    count: int
    is_exact: bool
    age_s: float  # of the oldest unread entry
    pending: int
    in_per_s: float | None = None  # entries added
    out_per_s: float | None = None  # entries handed to consumers
    drain_s: float | None = None  # 0 = nothing is unread; None = not known, or never at these rates


def dead_after_ms(group: str) -> int:
    """Return the longest time for which a live consumer that holds messages is silent.

    Consumers renew the messages that they hold. Those of message queues do so only if configured: by default, a lease
    lasts five minutes, and then another consumer takes the message over.
    """
    return _DEAD_AFTER_IN_QUEUES_MS if group == QUEUE_GROUP else _DEAD_AFTER_MS


class ConsumerState(StrEnum):
    """Whether a consumer works."""

    ACTIVE = "active"  # holds messages, and was active recently
    IDLE = "idle"  # holds nothing, and was active recently
    DEAD = "dead"  # silent for longer than a lease


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of a group."""

    stream: str
    group: str
    name: str
    pending: int
    idle_ms: int  # since it last read, claimed or renewed
    state: ConsumerState


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that was handed out and is not settled: a lease."""

    stream: str
    group: str
    id: str
    consumer: str
    idle_ms: int  # since it was handed out, or its lease was renewed
    deliveries: int
    attempts: int | None = None  # runs that have begun; None = not more than the first
    due_in_ms: int | None = None  # it waits for its next run; None = it is with its consumer


@dataclass(frozen=True, slots=True)
class ReaderCommit:
    """A step of a reader by ids, as a Sampler saw it: one batch of a Spark query, or all between two samples."""

    at_ms: int  # of the sample that saw it
    position: str  # the last id that was committed
    entries: int | None  # that it has handled; negative = it went back; None = not known, for the lag is a bound


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The position of a Spark query, an archive or another reader by ids: a group without consumers.

    Rates and commits are known to a Sampler only.
    """

    stream: str
    group: str
    kind: GroupKind
    position: str  # the last id that is committed
    lag: Lag
    in_per_s: float | None = None
    out_per_s: float | None = None
    drain_s: float | None = None  # 0 = nothing is unread; None = not known, or never at these rates
    commits: tuple[ReaderCommit, ...] = ()  # the last ones, the newest first


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A consumer name, with everything that it reads."""

    name: str
    state: ConsumerState
    streams: tuple[str, ...]
    groups: tuple[str, ...]
    pending: int
    idle_ms: int  # since it was last active
