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
    """Returns the sums over all processes of the tree."""
    each = [_usage_of_one(process) for process in tree(pid)]
    return Usage(sum(one.cpu_s for one in each), sum(one.wait_s for one in each))


def _usage_of_one(pid: int) -> Usage:
    ran_ns = waited_ns = 0
    for task in _tasks(pid):
        numbers = _read(task / "schedstat").split()
        if len(numbers) >= 2:
            ran_ns += int(numbers[0])
            waited_ns += int(numbers[1])
    # The threads' own counters are exact but vanish with a thread; those of the process are coarse but keep them.
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    coarse_s = (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND if len(fields) > 12 else 0.0
    return Usage(max(ran_ns / 1e9, coarse_s), waited_ns / 1e9)


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
