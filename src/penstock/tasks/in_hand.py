"""InHand: a task that somebody works on, seen from outside."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.task import Task


@dataclass(frozen=True, slots=True)
class InHand:
    """A task that was handed out and is not settled."""

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
