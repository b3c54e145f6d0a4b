"""Journals: what each process did, one line a step, appended in one write before the next step.

A line is `<what> <message> <time>`. What a killed process had written is what it did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".journal"
FAULTS_FILE, HELD_FILE = "faults.jsonl", "held.jsonl"
NO_FAULTS = frozenset({"stall", "busy"})
"""What is noted beside the faults: the whole machine stood still, or others had it."""


class Line(NamedTuple):
    """One step of a process, by the clock of the machine."""

    process: str
    what: str
    message: str
    at: float


@dataclass(frozen=True)
class Window:
    """When a fault held, whom it hit (`*`: everybody), and which runs it explains: `all`, `unended` or `none`."""

    kind: str
    target: str
    begin: float
    end: float
    explains: str
    restored: float = 0.0
    """When the servers could do all that is asked of them after a failover; 0.0 = this is none."""


@dataclass(frozen=True)
class InFlight:
    """What a worker had in hand when it died or was frozen."""

    process: str
    at: float
    messages: list[str]


@dataclass
class Run:
    """One run of a handler."""

    process: str
    begin: float
    end: float | None = None
    has_failed: bool = False


class Journal:
    """Appends the steps of one process; lines of several threads stay whole."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, message: object) -> None:
        """Append a step."""
        os.write(self._file, f"{what} {message} {time.time():.6f}\n".encode())


def lines(folder: Path, role: str) -> Iterator[Line]:
    """Yield the lines of all processes whose name begins with the role; a torn last line is none."""
    for path in sorted(folder.glob(f"{role}*{SUFFIX}")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                what, message, at = line.split()
                yield Line(path.name.removesuffix(SUFFIX), what, message, float(at))
