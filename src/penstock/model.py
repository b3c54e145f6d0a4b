"""The values that cross the public API. They are shared by the async and the sync half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from penstock import ids

_NO_HEADERS: Mapping[str, str] = {}


class StreamMessage(msgspec.Struct, kw_only=False, eq=True, gc=False):
    """One message, as passed to a handler.

    `data` is the decoded payload. `message_id` is the same in every run of a message: use it to make handlers
    idempotent. `attempts` counts the runs, including this one; `delivery_count` is the server's count of deliveries.
    `lease_lost` becomes True when another consumer has taken the message over.
    """

    # A Struct costs a third of a dataclass, and one is created per message on the hot path. gc=False is safe because
    # nothing that a message holds refers back to it.
    id: str
    data: Any
    delivery_count: int = 0
    attempts: int = 0
    key: str | None = None
    headers: Mapping[str, str] = _NO_HEADERS
    message_id: str | None = None
    stream: str = ""
    fields: Mapping[str, bytes] | None = None
    lease_lost: bool = False

    @property
    def timestamp(self) -> datetime:
        """When the server added the entry, according to its id."""
        return ids.moment(ids.parse(self.id)[0])


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """A message that was delivered and is not settled yet."""

    id: str
    consumer: str
    idle_ms: int
    delivery_count: int
    retry_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """One consumer of a group, as the server reports it."""

    name: str
    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind: the number of entries not delivered yet, and the age of the oldest.

    `is_exact` is false where counting to the end would keep the server busy: then `count` is an upper bound.
    """

    count: int
    age_s: float
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class StreamStats:
    """A group and its stream at one moment."""

    stream: str
    group: str
    stream_length: int
    group_pel_size: int
    lag: int
    last_delivered_id: str
    consumers: list[ConsumerInfo] = field(default_factory=list)
    dlq_length: int = 0
    lag_age_s: float = 0.0
    oldest_pending_ms: int = 0
    retries_waiting: int = 0
    is_lag_exact: bool = True


class Health(TypedDict):
    """What `ConsumerGroup.health_check()` finds; a mapping, as in redis-stream-queue."""

    healthy: bool
    issues: list[str]
    stats: StreamStats | None  # None: there is no such group


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """Counters of one consumer since it was created; rates over the last 60 seconds."""

    total_read: int
    total_acked: int
    total_dlq: int
    total_errors: int
    tps_in: float
    tps_out: float
    tps_total: float
    avg_tps: float
    uptime_secs: float
    total_retried: int = 0
    total_reclaimed: int = 0
    total_handed_back: int = 0
    total_lease_lost: int = 0
    total_missing: int = 0
    total_dlq_trimmed: int = 0


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """Counters of one producer since it was created; the rate over the last 60 seconds."""

    total_pushed: int
    tps: float
    avg_tps: float
    uptime_secs: float
    total_duplicates: int = 0
    total_dropped: int = 0
    total_rejected: int = 0


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one `run_once()` did."""

    read: int = 0
    reclaimed: int = 0
    acked: int = 0
    retried: int = 0
    dead_lettered: int = 0
    missing: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One complete record of the dead-letter stream."""

    id: str
    reason: str
    source_stream: str
    source_id: str
    group: str
    consumer: str
    error: str
    error_text: str
    attempts: int
    deliveries: int
    dead_at_ms: int
    message_id: str | None
    redrives: int
    fields: Mapping[str, bytes]
    traceback: str = ""
    cut: str = ""

    @property
    def data(self) -> bytes | None:
        """The payload bytes as the producer wrote them; None for an entry without `data`."""
        return self.fields.get("data")
