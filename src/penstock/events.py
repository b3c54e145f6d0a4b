"""What happened: one small table of names feeds counters, logs and exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EventName(StrEnum):
    """Every event, with the fields it carries beside `stream` and `group`."""

    RECONNECTED = "reconnected"  # the reader has a new connection
    RECLAIMED = "reclaimed"  # count, ids
    SWEPT = "swept"  # count, ids: own pending entries that no handler of this process held
    RETRIED = "retried"  # count
    DEAD_LETTERED = "dead_lettered"  # id, reason, error
    MISSING = "missing"  # ids: pending entries whose body was trimmed or deleted
    LEASE_LOST = "lease_lost"  # ids
    HANDED_BACK = "handed_back"  # count
    GROUP_LOST = "group_lost"  # position: where the group was created again
    CONSUMER_REMOVED = "consumer_removed"  # names
    TRIMMED = "trimmed"  # count
    DROPPED = "dropped"  # count: oldest entries dropped by the producer's policy
    REJECTED = "rejected"  # count
    STOPPED = "stopped"  # run() is about to return


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence."""

    name: EventName
    stream: str
    group: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


EventSink = Callable[[Event], None]
