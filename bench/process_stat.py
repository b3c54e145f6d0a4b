"""Processor time of a process tree and of the whole machine, read from /proc; all zero where there is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What the threads of a process tree did since they started."""

    cpu_s: float
    """Seconds on a core."""
    wait_s: float
    """Seconds in which a thread could run but had no core: how much others got in the way."""


def tree(pid: int) -> list[int]:
    """Returns the process and all its living descendants."""
    found, unseen = [], [pid]
    while unseen:
        current = unseen.pop()
        found.append(current)
        for task in _tasks(current):
            unseen.extend(int(child) for child in _read(task / "children").split())
    return found


def usage(pid: int) -> Usage:
    """Returns the sums over all threads of the process tree."""
    ran_ns = waited_ns = 0
    for process in tree(pid):
        for task in _tasks(process):
            numbers = _read(task / "schedstat").split()
            if len(numbers) >= 2:
                ran_ns += int(numbers[0])
                waited_ns += int(numbers[1])
    return Usage(ran_ns / 1e9, waited_ns / 1e9)


def machine_busy_s() -> float:
    """Returns the busy seconds of all cores since the machine started."""
    fields = _read(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]
    if len(fields) < 8:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / _TICKS_A_SECOND


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process ended between the listing and the read, or this is no Linux
        return ""
