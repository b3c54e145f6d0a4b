"""Lanes: the streams of a queue, one for each priority and each set of capabilities that tasks require.

A worker reads only the lanes whose tasks it can do, so what it cannot do stays where it is: no attempt is burnt and
no task moves in circles. A task in the wrong lane (only other workers know its kind, or another program wrote it) is
moved to the right one by the first worker that reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from penstock.task import Priority, Task

PRIORITIES = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
LOWEST_FIRST_EVERY = 8  # one read in this many begins with the lowest priority
_SHARE = 8  # and this fraction of every larger batch is kept for each lower priority
# With the name of its queue, the name of a lane is that of a stream, of at most 512 bytes.
_LONGEST_NAME, _LONGEST_KIND = 370, 128
_NAME = re.compile(r"(high|normal|low)(?::requires=([0-9A-Za-z_.,-]+))?(?::kind=([0-9A-Za-z_.~%-]+))?")


@dataclass(frozen=True, slots=True)
class Lane:
    """Where tasks of one priority and one set of required capabilities wait; `kind` is set if it has no other tasks."""

    priority: Priority = Priority.NORMAL
    requires: frozenset[str] = frozenset()
    kind: str | None = None

    @classmethod
    def of(cls, task: Task, only_kind: bool = False) -> Lane:
        """Return the lane for a task."""
        return cls(task.priority, task.requires, _short(task.kind) if only_kind else None)

    @classmethod
    def parse(cls, name: str) -> Lane | None:
        """Return the lane of that name, or None if it is not a lane: other programs can add any name to the list."""
        found = _NAME.fullmatch(name) if len(name) <= _LONGEST_NAME else None
        if found is None:
            return None
        priority, requires, kind = found.groups()
        tags = frozenset(filter(None, (requires or "").split(",")))
        return cls(Priority(priority), tags, None if kind is None else unquote(kind))

    @property
    def name(self) -> str:
        """The name by which the queue knows the lane, without spaces."""
        requires = f":requires={','.join(sorted(self.requires))}" if self.requires else ""
        kind = f":kind={quote(self.kind, safe='')}" if self.kind is not None else ""
        return f"{self.priority.value}{requires}{kind}"

    @property
    def suffix(self) -> str:
        """What the stream's name has behind `<queue>.tasks`."""
        return suffix_of(self.name)

    @property
    def is_lasting(self) -> bool:
        """Whether the lane stays when it is empty: there are as many of these as there are priorities."""
        return not self.requires and self.kind is None


@lru_cache(maxsize=1_000)
def _short(kind: str) -> str:
    """Return the kind as the name of a lane carries it: a digest if it is too long for the name of a stream."""
    if len(quote(kind, safe="")) <= _LONGEST_KIND:
        return kind
    return f"sha256-{hashlib.sha256(kind.encode()).hexdigest()}"


DEFAULT = Lane()


def lanes_in(members: Iterable[bytes]) -> dict[Lane, None]:
    """Return the lanes that a queue names, in order; the default one is always there."""
    parsed = [Lane.parse(name.decode(errors="replace")) for name in members]
    return dict.fromkeys((DEFAULT, *(lane for lane in parsed if lane is not None)))


class TaskFilter:
    """Which tasks a worker can do: of these kinds, and requiring only what it provides; None = whatever there is."""

    def __init__(self, provides: Collection[str] | None = None, kinds: Collection[str] | None = None) -> None:
        self.provides = None if provides is None else frozenset(provides)
        self.kinds = None if kinds is None else frozenset(kinds)
        # Lanes may also have been named before long kinds were shortened.
        self._lane_kinds = frozenset(self.kinds or ()) | frozenset(map(_short, self.kinds or ()))

    def accepts(self, task: Task) -> bool:
        """Return whether the worker can handle a task."""
        return (self.kinds is None or task.kind in self.kinds) and (
            self.provides is None or task.requires <= self.provides
        )

    def reads(self, lane: Lane) -> bool:
        """Return whether the worker can handle tasks of a lane."""
        return (self.provides is None or lane.requires <= self.provides) and (
            self.kinds is None or lane.kind is None or lane.kind in self._lane_kinds
        )

    def place_of(self, task: Task) -> Lane:
        """Return the lane to which a task goes that the worker cannot do: one that only those read who can."""
        return Lane.of(task, only_kind=self.kinds is not None and task.kind not in self.kinds)


ANY_TASK = TaskFilter()


def suffix_of(name: str) -> str:
    """Return what the name of a lane's stream has behind `<queue>.tasks`."""
    return "" if name == Priority.NORMAL.value else f".{name}"


def reading_order(lanes: Iterable[Lane], turn: int) -> list[Lane]:
    """Return the lanes in the order of a read: by priority, equals in turn; now and then the other way round."""
    ordered = sorted(lanes, key=lambda lane: (PRIORITIES.index(lane.priority), lane.name))
    if len(ordered) < 2:
        return ordered
    groups = [[lane for lane in ordered if lane.priority is priority] for priority in PRIORITIES]
    turned = [group[turn % len(group) :] + group[: turn % len(group)] for group in groups if group]
    if turn % LOWEST_FIRST_EVERY == LOWEST_FIRST_EVERY - 1:
        turned.reverse()
    return [lane for group in turned for lane in group]


def portions(lanes: Sequence[Lane], count: int) -> list[int]:
    """Return how many tasks each lane gives before the next one has its turn, for a read of so many.

    Of a larger read a small part is kept for the lanes behind: a flood of urgent tasks slows the others down and does
    not stop them.
    """
    behind = [len({later.priority for later in lanes[i + 1 :]} - {lane.priority}) for i, lane in enumerate(lanes)]
    return [max(1, count - (count // _SHARE) * levels) for levels in behind]
