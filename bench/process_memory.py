"""The most memory that processes have held, read from /proc; 0 where there is none."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal, Self, TypeAlias

from bench.process_stat import tree

Role: TypeAlias = Literal["driver", "java", "worker"]
_EVERY_S = 0.2
_RESET_PEAK = "5"


class PeakMemory:
    """Watches this process and its children: the driver, Java, and the greatest of the Python workers."""

    def __init__(self) -> None:
        self.mb: dict[Role, float] = {"driver": 0.0, "java": 0.0, "worker": 0.0}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        for pid in tree(os.getpid()):
            _forget_peak(pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        for pid in tree(os.getpid()):
            role = _role(pid)
            if role is not None:
                self.mb[role] = max(self.mb[role], _peak_mb(pid))


def _role(pid: int) -> Role | None:
    if pid == os.getpid():
        return "driver"
    name = _text(pid, "comm").strip()
    if name == "java":
        return "java"
    return "worker" if name.startswith("python") else None  # the server holds the messages themselves


def _peak_mb(pid: int) -> float:
    for line in _text(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _forget_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return  # it has ended, or this is no Linux: the peak is then that of its whole life


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
