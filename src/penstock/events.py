"""What happened: one small table of names feeds counters, logs and exporters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

logger = logging.getLogger("penstock.events")


class EventName(StrEnum):
    """Every event, with its fields other than `stream` and `group`."""

    RECONNECTED = "reconnected"  # the reader has a new connection
    RECLAIMED = "reclaimed"  # count, ids
    SWEPT = "swept"  # count, ids: own pending entries that no handler of this process held
    RETRIED = "retried"  # count; of queues and tasks: id, delay_s, counts (whether this run counts as an attempt)
    DEAD_LETTERED = "dead_lettered"  # id, reason, error
    DEAD_LETTERS_TRIMMED = "dead_letters_trimmed"  # count: the oldest, beyond their limits
    MISSING = "missing"  # ids: pending entries whose body was trimmed or deleted
    LEASE_LOST = "lease_lost"  # ids; of a queue also reason: it may also be about to expire
    HANDED_BACK = "handed_back"  # count; of a balancer: ids
    GROUP_LOST = "group_lost"  # position: where the group was created again
    CONSUMER_REMOVED = "consumer_removed"  # names
    TRIMMED = "trimmed"  # count
    DROPPED = "dropped"  # count: oldest entries dropped by the producer's policy
    REJECTED = "rejected"  # count
    STOPPED = "stopped"  # run() is about to return; of a worker of tasks: reason
    # Of queues, tasks and balancers; `id` is that of the message's entry, of the task, or of the stream's entry.
    PUBLISHED = "published"  # id
    DUPLICATE = "duplicate"  # id of the earlier message; of a producer of streams: count
    CLAIMED = "claimed"  # id, delivery_count, attempts, is_again
    EMPTY = "empty"  # a wait ended without a message
    COMPLETED = "completed"  # id
    FAILED = "failed"  # id, error, attempts: the handler raised
    DISCARDED = "discarded"  # id: failed, and the policy wants no retry
    RENEWED = "renewed"  # id: the lease
    STALE = "stale"  # id, what: refused, because another consumer has the message
    UNSETTLED = "unsettled"  # id, error: Redis was out of reach; the next call tries again
    UNLOGGED = "unlogged"  # id, log: done, but the log refused its record
    TRYING_AGAIN = "trying_again"  # error, pause_s: after a failure that passes
    DRAINED = "drained"  # is_complete
    # Of pipelines: `stream` names all that one reads, `group` is the pipeline; also failed (error) and trying_again.
    BATCH_COMMITTED = "batch_committed"  # batch, rows, seconds, rows_per_s, lag, eta_s
    RULE_BROKEN = "rule_broken"  # rule, action, count: rows of the batch for which the rule is not true


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence."""

    name: EventName
    stream: str
    group: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


EventSink = Callable[[Event], None]
Emit = Callable[..., None]  # of an EventName, and its fields by name


def notify(sink: EventSink, event: Event) -> None:
    """Call a user's function with an event; log its errors."""
    try:
        sink(event)
    except Exception:
        logger.exception("on_event raised an error for the event %s", event.name)


class Emitter:
    """Passes the events of one stream to a user's function, if there is one."""

    def __init__(self, sink: EventSink | None, stream: str, group: str = "") -> None:
        self.sink, self._stream, self._group = sink, stream, group

    def __call__(self, name: EventName, **fields: object) -> None:
        """Emit an event."""
        if self.sink is not None:
            notify(self.sink, Event(name, self._stream, self._group, fields))
