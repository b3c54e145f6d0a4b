"""Whether the machine is ours: other programs that take the processors make every recovery late."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

BUSY_SHARE = 0.25
"""Of all processors, taken by programs that are not ours: more than that, and what is late says nothing."""
_EVERY_S = 1.0
_LATE_S = 0.5
_TICKS_S = os.sysconf("SC_CLK_TCK")


class MachineWatch:
    """A thread that looks every second how much time of the processors others took, and whether it was late itself."""

    def __init__(self, on_busy: Callable[[float, float], None]) -> None:
        """`on_busy` is called with the begin and the end of each such second."""
        self._on_busy = on_busy
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before, at = others_s(), time.time()
        while not self._stop.wait(_EVERY_S):
            now, taken = time.time(), others_s()
            share = (taken - before) / max(now - at, 0.001) / (os.cpu_count() or 1)
            if share > BUSY_SHARE or now - at > _EVERY_S + _LATE_S:
                self._on_busy(at, now)
            before, at = taken, now


def others_s() -> float:
    """Return how many seconds of the processors went to programs that are neither this one nor started by it."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = (int(value) for value in fields[:8])
    return (user + nice + system + irq + softirq + steal) / _TICKS_S - ours_s()


def ours_s() -> float:
    """Return how many seconds of the processors this program and all that it started took."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                rest = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(folder.name)] = int(rest[1])
            ticks[int(folder.name)] = sum(map(int, rest[11:15]))  # with what its children took that have ended
    return sum(spent for pid, spent in ticks.items() if _descends(pid, parents)) / _TICKS_S


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False
