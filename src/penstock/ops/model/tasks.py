"""Message queues, task queues, tasks and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


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
    UNKNOWN = "unknown"  # never added, or its result has expired: it may still be a dead letter


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task."""

    queue: str
    id: str
    state: TaskState
    kind: str = ""
    lane: str = ""
    attempts: int | None = 0  # runs that have begun; None = not known, of a result that was not read whole
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
    is_cut: bool = False  # it is larger than was to be read: payload, result and what stands behind them are missing


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
    """A schedule, as its next task describes it: its rule is in the workers' code. If paused, that task is skipped."""

    queue: str
    name: str
    next_task_id: str  # '' = none is on the queue: no worker that has the schedule was there lately
    next_at_ms: int | None
    kind: str = ""
    is_paused: bool = False
    paused_at_ms: int | None = None
