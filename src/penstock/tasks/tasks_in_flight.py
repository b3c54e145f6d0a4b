"""What a queue object holds: every task that it was handed and has not settled."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.delivery.in_flight import InFlight
from penstock.model import StreamMessage
from penstock.task import Task
from penstock.tasks.lanes import Lane


class TaskInFlight(msgspec.Struct, gc=False, eq=False):
    """A task in our hands, and the entry that it is."""

    task: Task
    lane: Lane
    entry_id: str
    is_again: bool  # it was handed out before, so there are records of that


class LaneInFlight(InFlight):
    """The entries of one lane, as the heartbeat asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, TaskInFlight] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def unsettled_ids(self) -> list[str]:
        """Return the ids of all entries."""
        return list(self.entries)

    def find(self, wanted: Iterable[str]) -> dict[str, StreamMessage | None]:
        """Return those of the entries that are held."""
        return {entry_id: None for entry_id in wanted if entry_id in self.entries}


class TasksInFlight:
    """The tasks in our hands, by their id and by their entry; for any number of threads."""

    def __init__(self) -> None:
        self._by_id: dict[str, TaskInFlight] = {}
        self.lanes: dict[Lane, LaneInFlight] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, lane: Lane) -> LaneInFlight:
        """Return the entries of a lane."""
        return self.lanes.get(lane) or self.lanes.setdefault(lane, LaneInFlight())

    def second_entries(self, tasks: Iterable[TaskInFlight]) -> list[TaskInFlight]:
        """Return those of the tasks whose id is that of another entry, which is held or comes before them."""
        by_id, before, found = self._by_id, dict[str, TaskInFlight](), list[TaskInFlight]()
        for held in tasks:
            task_id = held.task.id
            known = by_id.get(task_id) or before.setdefault(task_id, held)
            if known is not held and (known.entry_id != held.entry_id or known.lane != held.lane):
                found.append(held)
        return found

    def add(self, tasks: Iterable[TaskInFlight]) -> None:
        """Hold tasks."""
        lane, entries = None, dict[str, TaskInFlight]()
        for held in tasks:
            if held.lane is not lane:
                lane, entries = held.lane, self.of(held.lane).entries
            self._by_id[held.task.id] = held
            entries[held.entry_id] = held

    def get(self, task_id: str) -> TaskInFlight | None:
        """Return a task if it is held."""
        return self._by_id.get(task_id)

    def release(self, held: TaskInFlight) -> None:
        """Let go of a task."""
        if self._by_id.get(held.task.id) is held:
            del self._by_id[held.task.id]
        self.of(held.lane).entries.pop(held.entry_id, None)

    def release_all(self, lane: Lane, tasks: Iterable[TaskInFlight]) -> None:
        """Let go of tasks of one lane."""
        entries = self.of(lane).entries
        for held in tasks:
            if self._by_id.get(held.task.id) is held:
                del self._by_id[held.task.id]
            entries.pop(held.entry_id, None)

    def lose(self, lane: Lane, entry_ids: Iterable[str]) -> list[TaskInFlight]:
        """Let go of entries that belong to another consumer now; return their tasks."""
        entries = self.of(lane).entries
        lost = [entries[entry_id] for entry_id in entry_ids if entry_id in entries]
        for held in lost:
            self.release(held)
        return lost
