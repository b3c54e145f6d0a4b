"""What operators see of a queue: tasks that are being processed or were given up, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from penstock import ids
from penstock.errors import DecodeError
from penstock.serializers import PayloadLimits
from penstock.task import LIMITS, Task, decode_task


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task that was delivered and is not settled."""

    task: Task
    consumer: str  # who has it, or had it last
    idle_ms: int  # since it was handed out or its lease was renewed
    due_in_ms: int | None = None  # it waits to be tried again; None = it is being worked on

    @property
    def id(self) -> str:
        """The id of the task."""
        return self.task.id

    @property
    def kind(self) -> str:
        """The kind of the task."""
        return self.task.kind


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A record of the dead letters; `task` is None where the entry could not be read as one."""

    id: str  # of the record
    task_id: str
    kind: str
    reason: str
    error: str
    error_text: str
    attempts: int
    dead_at_ms: int
    source: str  # stream and id of the entry that it was
    consumer: str
    redrives: int
    data: bytes = b""
    fields: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    traceback: str = field(default="", repr=False)  # of the error, its end
    cut: str = ""  # what of the entry found no room in the record
    limits: PayloadLimits = field(default=LIMITS, repr=False, compare=False)

    @property
    def task(self) -> Task | None:
        """The task, if it can be decoded within the limits of the queue."""
        try:
            return decode_task(self.data, self.limits)
        except DecodeError:
            return None

    @property
    def dead_at(self) -> datetime:
        """When it was dead-lettered."""
        return ids.moment(self.dead_at_ms)


@dataclass(frozen=True, slots=True)
class LaneGauges:
    """The numbers of one lane."""

    stream: str
    in_hand: int
    waiting: int  # for their next run
    idle_max_s: float  # of what is in hand


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """The numbers of one queue; those by kind count since the queue exists."""

    name: str
    stream: str
    open: int
    scheduled: int
    dead_letters: int
    results: int
    added: dict[str, int] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    redriven: dict[str, int] = field(default_factory=dict)
    lanes: tuple[LaneGauges, ...] = ()
    dead_trimmed: int = 0  # dead letters that were removed beyond their limits

    @property
    def open_by_kind(self) -> dict[str, int]:
        """Open tasks by kind: what was added and redriven, without what was acknowledged or given up."""
        kinds = {*self.added, *self.acked, *self.dead, *self.redriven}
        return {
            kind: max(
                0,
                self.added.get(kind, 0) + self.redriven.get(kind, 0) - self.acked.get(kind, 0) - self.dead.get(kind, 0),
            )
            for kind in sorted(kinds)
        }
