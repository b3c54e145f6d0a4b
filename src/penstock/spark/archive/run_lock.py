"""The lock of a root: one run archives to it at a time, lest two cron jobs that overlap spoil each other's work.

The manifest refuses the commit of a second run in any case. The lock tells it before it begins, and keeps it from
removing what the first one is writing. It is the kernel's, and ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from penstock.spark.archive.errors import ArchiveConflict
from penstock.spark.file_lock import lock

_held: dict[Path, RunLock] = {}
_guard = threading.Lock()


class RunLock:
    """Held by the runs of this process; Spark itself refuses two of one root in a session."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self._file, self._descriptor, self._holders = file, descriptor, 0

    @classmethod
    def take(cls, file: Path) -> RunLock:
        """Take the lock, whose directory exists; raise ArchiveConflict if another process has it."""
        with _guard:
            held = _held.get(file)
            if held is None:
                held = _held[file] = cls(file, _locked(file, os.O_RDWR | os.O_CREAT))
            held._holders += 1
            return held

    @classmethod
    def check(cls, file: Path) -> None:
        """Raise ArchiveConflict if another process has the lock; nothing is written."""
        with _guard:
            if file not in _held and file.exists():
                os.close(_locked(file, os.O_RDONLY))

    def give_back(self) -> None:
        """Let others have it when all runs of this process are over."""
        with _guard:
            self._holders -= 1
            if not self._holders:
                del _held[self._file]
                os.close(self._descriptor)


def _locked(file: Path, flags: int) -> int:
    descriptor = os.open(file, flags, 0o666)
    try:
        if lock(descriptor, file, "archive run"):
            return descriptor
        raise ArchiveConflict(f"another run archives to {file.parent} at this moment: wait until it ends, or stop it")
    except BaseException:
        os.close(descriptor)
        raise
