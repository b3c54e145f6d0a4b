"""Streams, their groups and their entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from penstock import ids
from penstock.model import Lag


class StreamKind(StrEnum):
    """What a stream is for."""

    STREAM = "stream"
    QUEUE = "queue"  # the messages of a message queue
    QUEUE_LOG = "queue_log"  # completed or failed messages of a message queue
    TASKS = "tasks"  # a lane of a task queue
    RESULTS = "results"  # of a task queue
    DEAD_LETTERS = "dead_letters"
    SERVICE = "service"  # the load balancer stream of a balanced service


class GroupKind(StrEnum):
    """Who reads through a consumer group."""

    CONSUMERS = "consumers"
    POSITION = "position"  # has no consumers: it marks the position of a Spark query or another reader by ids
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One consumer group."""

    stream: str
    name: str
    kind: GroupKind
    consumers: int
    pending: int
    last_delivered_id: str
    lag: Lag
    oldest_pending_id: str = ""
    oldest_pending_idle_ms: int = 0  # since it was renewed; of one that waits for its next run, since that was due
    retries_waiting: int = 0
    entries_read: int | None = None  # the server's own count, which trimming and deleting make wrong


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream and its groups."""

    name: str
    kind: StreamKind
    owner: str  # the queue or service that it belongs to, the source of dead letters; '' for a plain stream
    length: int
    first_id: str  # '' = the stream is empty, or has huge entries
    last_id: str
    last_generated_id: str
    entries_added: int | None  # since the stream exists; None = the server does not count (before 7.0)
    groups: tuple[GroupInfo, ...] = ()
    groups_count: int = 0  # of a stream with more groups than are looked at, greater than len(groups)
    dead_letters_stream: str = ""  # by the usual name; '' = there is none
    dead_letters: int = 0
    memory_bytes: int | None = None  # an estimate by samples; None = not asked for, or the user may not ask
    has_huge_entries: bool = False  # of megabytes: they are not looked at for ids, and lags are bounds

    @property
    def pending(self) -> int:
        """Messages that are with consumers, of all groups."""
        return sum(group.pending for group in self.groups)

    @property
    def lag(self) -> Lag | None:
        """The lag of the group that is furthest behind; None without a group."""
        return max((group.lag for group in self.groups), key=lambda lag: lag.count, default=None)

    @property
    def last_added_at(self) -> datetime | None:
        """When the newest entry was added, as its id says; None = the stream is empty."""
        return ids.moment(ids.parse(self.last_id)[0]) if self.last_id else None


@dataclass(frozen=True, slots=True)
class FieldValue:
    """One field of an entry; `value` holds its first bytes, `size` says how many it has."""

    name: str
    value: bytes
    size: int

    @property
    def is_cut(self) -> bool:
        """Whether there is more than is shown."""
        return self.size > len(self.value)


@dataclass(frozen=True, slots=True)
class Payload:
    """The payload of an entry as it can be shown: `value` is decoded where that is safe, else None.

    `form` is json, msgpack, text, task, pickle, protected, binary or none. Pickle is never decoded.
    """

    form: str
    value: Any = None
    note: str = ""  # why it is not decoded


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream."""

    stream: str
    id: str
    fields: tuple[FieldValue, ...]
    payload: Payload
    key: str | None = None
    message_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def added_at(self) -> datetime:
        """When the entry was added, as its id says."""
        return ids.moment(ids.parse(self.id)[0])

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return sum(each.size for each in self.fields)
