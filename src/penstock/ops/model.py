"""The values that the Inspector returns. They are shared by the async and the sync half.

Streams are named as the client names them, without its prefix. Times are ms since 1970, ages and durations seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from penstock import ids
from penstock.model import Lag

Item = TypeVar("Item")
MOST_CONSUMERS = 2_000  # of one group: to list more takes the server longer than it may be held up


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list. Pass `cursor` to get the next one; '' = this was the last.

    A page may hold fewer items than were asked for, or none, and have a cursor all the same: the work for one page is
    bounded, however few of the items match.
    """

    items: tuple[Item, ...]
    cursor: str = ""


# --- streams --------------------------------------------------------------------------------------


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
    POSITION = "position"  # nobody reads through it: it marks how far a Spark query or another reader has come
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
    oldest_pending_idle_ms: int = 0
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


# --- groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, and when it will have caught up.

    `is_exact` is false where `count` is a bound: counting to the end would keep the server busy. The rates are None
    until two samples were taken.
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


class ConsumerState(StrEnum):
    """Whether a consumer works."""

    ACTIVE = "active"  # holds messages, and was heard of lately
    IDLE = "idle"  # holds nothing, and was heard of lately
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


# --- dead letters ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetterStreamInfo:
    """One stream of dead letters."""

    stream: str
    kind: StreamKind  # what its messages were: STREAM, QUEUE, TASKS or SERVICE
    owner: str  # the stream, queue or service; '' = the name does not tell
    count: int
    first_id: str = ""
    last_id: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """A dead letter without its whole payload: `fields` hold the first bytes of each value."""

    stream: str  # of the dead letters
    id: str
    reason: str
    error: str
    error_text: str
    traceback: str
    source_stream: str
    source_id: str
    group: str
    consumer: str
    attempts: int
    deliveries: int
    redrives: int
    dead_at_ms: int
    message_id: str | None
    task_id: str
    task_kind: str
    cut: str
    fingerprint: str  # the same for failures of one cause
    payload: Payload
    fields: tuple[FieldValue, ...] = ()

    @property
    def dead_at(self) -> datetime:
        """When it was given up."""
        return ids.moment(self.dead_at_ms)

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return sum(each.size for each in self.fields)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant: those that match everything that is given."""

    ids: frozenset[str] = frozenset()  # of records, or of tasks
    reason: str | None = None
    error: str | None = None  # the class
    kind: str | None = None  # of tasks
    fingerprint: str | None = None
    source: str | None = None  # the stream they come from
    since_ms: int = 0
    until_ms: int | None = None
    text: str | None = None  # in the error or the payload


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters that failed in the same way."""

    fingerprint: str
    reason: str
    error: str
    error_text: str  # of the newest
    count: int
    first_at_ms: int
    last_at_ms: int
    sample_id: str  # the newest record
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Dead letters by cause, the most frequent first; `is_complete` is false if there were too many to read."""

    groups: tuple[FailureGroup, ...]
    read: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """What a redrive did, or, of a dry run, would do."""

    matched: int
    redriven: int
    refused: int  # redriven too often already, without a payload, open again, or gone
    new_ids: tuple[str, ...] = ()  # of entries, or of tasks
    is_dry_run: bool = False
    is_complete: bool = True  # false: `limit` was reached first


# --- message queues, tasks ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One message queue; a count of None = there is no such log."""

    name: str
    pending: int  # never handed out
    processing: int
    retrying: int
    completed: int | None
    failed: int | None
    dead_letters: int | None
    oldest_pending_s: float = 0.0


class TaskState(StrEnum):
    """Where a task is."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # for its next run
    DONE = "done"  # has a result: ok, error or skip
    DEAD = "dead"
    UNKNOWN = "unknown"  # never heard of, or its result was let go


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task."""

    queue: str
    id: str
    state: TaskState
    kind: str = ""
    lane: str = ""
    attempts: int = 0
    consumer: str = ""
    idle_ms: int | None = None
    due_at_ms: int | None = None
    created_at: datetime | None = None
    priority: str = ""
    requires: tuple[str, ...] = ()
    payload: Mapping[str, Any] | None = None
    status: str = ""  # of its result
    error: str = ""
    result: Any = None


@dataclass(frozen=True, slots=True)
class TaskQueueInfo:
    """The numbers of one task queue; those by kind count since the queue exists."""

    name: str
    open: int
    queued: int
    running: int
    waiting: int
    scheduled: int
    dead: int
    results: int
    longest_idle_s: float
    lanes: int
    open_by_kind: Mapping[str, int] = field(default_factory=dict)
    done_by_kind: Mapping[str, int] = field(default_factory=dict)
    dead_by_kind: Mapping[str, int] = field(default_factory=dict)
    dead_trimmed: int = 0  # dead letters that were removed beyond their limits


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, as its next task tells: rules live in the workers' code."""

    queue: str
    name: str
    next_task_id: str
    next_at_ms: int
    kind: str = ""
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A consumer name, with everything that it reads."""

    name: str
    state: ConsumerState
    streams: tuple[str, ...]
    groups: tuple[str, ...]
    pending: int
    idle_ms: int  # since it was last heard of


# --- balancer -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnedStream:
    """A data stream of a balanced service."""

    service: str
    data_stream: str
    entry_id: str
    owner: str  # '' = nobody holds its lock: it waits for an owner
    lock_ms: int | None  # time left; None = nobody holds it
    deliveries: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class BalancerPeer:
    """A consumer of a balanced service."""

    name: str
    owned: int
    capacity: int  # 0 = any number
    alive_ms: int  # for which it still counts as alive; negative = it is gone


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """One balanced service."""

    name: str
    streams: int  # handed out and not finished
    waiting: int  # new, without an owner so far
    peers: tuple[BalancerPeer, ...] = ()
    dead_letters: int = 0


# --- Spark ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """How far a Spark query, an archive or another reader by ids has come: a group through which nobody reads."""

    stream: str
    group: str
    kind: GroupKind
    position: str  # the last id that is committed
    lag: Lag


# --- retention ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pin:
    """What a group still needs of a stream."""

    group: str
    kind: GroupKind
    floor_id: str  # the first id that it needs
    pending: int
    lag: int
    age_s: float  # of the floor
    is_lowest: bool = False  # this one decides what is kept
    is_dead: bool = False  # all its consumers are silent, and it is behind


@dataclass(frozen=True, slots=True)
class RetentionInfo:
    """Who pins a stream's memory, and what could go."""

    stream: str
    kind: StreamKind
    length: int
    memory_bytes: int | None  # estimated by the server, from samples
    floor_id: str  # the first id that some group needs; '' = nothing is finished: there is no group
    finished: int  # entries before the floor
    reclaimable_bytes: int | None  # estimated
    is_exact: bool  # false: `finished` is a lower bound
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What of a stream is kept beside what its groups need; None = no limit of that kind.

    With `archived_only`, only what the archive has is trimmed: nothing at all where no archive has a group.
    """

    max_age_s: float | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    archived_only: bool = False


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What a policy trims; of a dry run, what it would."""

    stream: str
    entries: int
    bytes: int | None  # estimated
    is_exact: bool
    is_dry_run: bool
    excess: int = 0  # entries beyond the policy; those that groups need stay
    held_by: tuple[str, ...] = ()  # groups that keep the rest
    note: str = ""


# --- server ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server; None = it does not say."""

    address: str
    product: str
    version: str
    role: str
    uptime_s: int
    used_memory: int
    max_memory: int  # 0 = no limit
    peak_memory: int
    eviction_policy: str | None
    is_append_only: bool | None
    fsync: str | None
    snapshots: bool | None  # whether snapshots are taken by rule
    unsaved_changes: int
    last_save_ok: bool
    replicas: int
    min_replicas: int | None
    clients: int
    blocked_clients: int
    ops_per_s: int
    keys: int
    keyspace_events: str | None
    is_cluster: bool
    clock_skew_s: float  # how far the server's clock is ahead of this machine's
    cpu_s: float = 0.0  # used by its main thread since it started


# --- health ---------------------------------------------------------------------------------------


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the doctor has found."""

    check: str  # its stable name
    severity: Severity
    where: str  # server, stream, group, ...
    what: str
    fix: str = ""
    link: str = ""  # a page of the documentation


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all streams."""

    streams: int = 0
    entries: int = 0
    groups: int = 0
    consumers: int = 0
    pending: int = 0
    lag: int = 0
    is_lag_exact: bool = True
    retries_waiting: int = 0
    dead_letters: int = 0
    oldest_unread_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment."""

    at_ms: int
    streams: tuple[StreamInfo, ...]
    totals: Totals
    servers: tuple[ServerInfo, ...] = ()
    task_queues: tuple[TaskQueueInfo, ...] = ()
    services: tuple[ServiceInfo, ...] = ()
    names: int = 0  # streams that there are; more than len(streams) if there were too many to look at


# --- samples --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """A stream at one moment, for a chart."""

    at_ms: int
    length: int
    lag: int
    pending: int
    dead_letters: int
    in_per_s: float
    out_per_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at one moment, for a chart; `error` says why there are no numbers."""

    at_ms: int
    totals: Totals
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    used_memory: int = 0
    max_memory: int = 0
    ops_per_s: int = 0
    clients: int = 0
    error: str = ""
