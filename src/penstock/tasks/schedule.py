"""Schedule: a task that is to be done again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.task import Priority, PriorityName, Task, check_id
from penstock.tasks.cron import CronRule


@dataclass(frozen=True, slots=True)
class Schedule:
    """A rule and the task for each of its times.

    The id of a task tells the schedule and the time, so that any number of workers may add it: it is there once.
    """

    name: str
    rule: CronRule
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    priority: Priority | PriorityName = Priority.NORMAL

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a name that cannot be part of an id, and for what no task can be made of."""
        check_id("name", f"cron.{self.name}.20300131T120000Z")
        self.task_at(datetime(2030, 1, 31, 12, tzinfo=UTC))

    def task_at(self, moment: datetime) -> Task:
        """Return the task for one of the times."""
        return Task(
            kind=self.kind,
            id=f"cron.{self.name}.{moment:%Y%m%dT%H%M%SZ}",
            payload=self.payload,
            requires=self.requires,
            priority=self.priority,
            unique=f"cron.{self.name}.{moment:%Y%m%dT%H%M%SZ}",
        )
