"""What a queue object holds: every task that it was handed and has not settled."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.keys import StreamKeys, TaskKeys
from penstock.task import Task
from penstock.tasks.lanes import Lane


class TaskInFlight(msgspec.Struct, gc=False, eq=False):
    """A task in our hands, and the entry that it is."""

    task: Task
    lane: Lane
    entry_id: str
    is_again: bool  # it was handed out before, so there are records of that


class TasksInFlight:
    """The tasks in our hands, by their id and by their entry; for any number of threads."""

    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys
        self._by_id: dict[str, TaskInFlight] = {}
        self._lanes: dict[Lane, dict[str, TaskInFlight]] = {}  # by entry id

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, lane: Lane) -> dict[str, TaskInFlight]:
        """Return the tasks of a lane by their entry."""
        entries = self._lanes.get(lane)
        return self._lanes.setdefault(lane, {}) if entries is None else entries

    def ids_by_stream(self) -> dict[StreamKeys, list[str]]:
        """Return the ids of all entries: the leases that are renewed."""
        return {self._keys.tasks(lane.suffix): list(entries) for lane, entries in list(self._lanes.items())}

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
                lane, entries = held.lane, self.of(held.lane)
            self._by_id[held.task.id] = held
            entries[held.entry_id] = held

    def get(self, task_id: str) -> TaskInFlight | None:
        """Return a task if it is held."""
        return self._by_id.get(task_id)

    def release(self, held: TaskInFlight) -> None:
        """Let go of a task."""
        self.release_all(held.lane, [held])

    def release_all(self, lane: Lane, tasks: Iterable[TaskInFlight]) -> None:
        """Let go of tasks of one lane."""
        entries = self.of(lane)
        for held in tasks:
            if self._by_id.get(held.task.id) is held:
                del self._by_id[held.task.id]
            entries.pop(held.entry_id, None)

    def lose(self, keys: StreamKeys, entry_ids: Iterable[str]) -> list[TaskInFlight]:
        """Let go of entries of a stream that belong to another consumer now; return their tasks."""
        entries = next(self.of(lane) for lane in list(self._lanes) if self._keys.tasks(lane.suffix) == keys)
        lost = [entries[entry_id] for entry_id in entry_ids if entry_id in entries]
        for held in lost:
            self.release(held)
        return lost
