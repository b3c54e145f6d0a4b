"""The locks of an archive on a disk: one run appends to it at a time, and one compaction is at work.

The log of the table refuses the commit of a second one in any case. The lock refuses it before it begins, and keeps it
from removing what the first one is writing. It is the kernel's, and ends with the process that holds it, however that
ends. A store without such locks has the log alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.spark.archive.state import ArchiveConflict
from penstock.spark.lake.files import Location
from penstock.spark.runtime.files import lock

_FILES = {"run": "_lock", "compact": "_compact_lock"}
_WHAT = {"run": "run is archiving to", "compact": "compaction is running on"}
_held: dict[Path, ArchiveLock] = {}
_guard = threading.Lock()


class ArchiveLock:
    """Held by the runs of this process; Spark itself refuses two of one root in a session. Compactions share none."""

    def __init__(self, file: Path | None, descriptor: int = -1) -> None:
        self._file, self._descriptor, self._holders = file, descriptor, 0

    @classmethod
    def take(cls, location: Location, kind: str = "run") -> ArchiveLock:
        """Take a lock of an archive; raise ArchiveConflict if another process has it."""
        if location.local is None:
            return cls(None)
        file = location.local / _FILES[kind]
        with _guard:
            held = _held.get(file)
            if held is not None and kind == "compact":
                raise _conflict(file, kind)
            if held is None:
                held = _held[file] = cls(file, _locked(file, kind, os.O_RDWR | os.O_CREAT))
            held._holders += 1
            return held

    @classmethod
    def check(cls, location: Location, kind: str = "run") -> None:
        """Raise ArchiveConflict if another process has the lock; nothing is written."""
        if location.local is None:
            return
        file = location.local / _FILES[kind]
        with _guard:
            if file not in _held and file.exists():
                os.close(_locked(file, kind, os.O_RDONLY))

    @classmethod
    @contextmanager
    def held(cls, location: Location, kind: str) -> Iterator[None]:
        """Hold a lock for a while."""
        taken = cls.take(location, kind)
        try:
            yield
        finally:
            taken.give_back()

    def give_back(self) -> None:
        """Let others have it when all runs of this process are over."""
        if self._file is None:
            return
        with _guard:
            self._holders -= 1
            if not self._holders:
                del _held[self._file]
                os.close(self._descriptor)


def _locked(file: Path, kind: str, flags: int) -> int:
    descriptor = os.open(file, flags, 0o666)
    try:
        if lock(descriptor, file, f"archive {kind}"):
            return descriptor
        raise _conflict(file, kind)
    except BaseException:
        os.close(descriptor)
        raise


def _conflict(file: Path, kind: str) -> ArchiveConflict:
    return ArchiveConflict(f"another {_WHAT[kind]} {file.parent}: wait until it ends, or stop it")
