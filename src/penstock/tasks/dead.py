"""DeadTask: a task that was given up, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.errors import DecodeError
from penstock.task import Task, decode_task


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
    fields: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def task(self) -> Task | None:
        """The task, if it can be read."""
        try:
            return decode_task(self.data)
        except DecodeError:
            return None

    @property
    def dead_at(self) -> datetime:
        """When it was given up."""
        return datetime.fromtimestamp(self.dead_at_ms / 1000, UTC)
