"""Progress counters in a shared file: every worker process bumps its own slot, the driver sums them.

Only the standard library is used: every peer's interpreter imports this module.
Layout: one uint64 with the number of slots handed out, then one uint64 counter a slot.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

_SLOTS = 4096
_WORD = struct.Struct("=Q")
_SIZE = _WORD.size * (1 + _SLOTS)
_LATENCY = struct.Struct("=d")


def _latency_file(path: str) -> Path:
    return Path(path + ".latencies")


class Probe:
    """The worker's side: counts handled messages and records how long each was on its way."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._file, _SIZE)
        self._words = memoryview(self._map).cast("Q")
        self._latencies = os.open(_latency_file(path), os.O_WRONLY | os.O_APPEND)
        self._lock = threading.Lock()
        self._slot = 0
        # A worker that forks per job must not share its parent's counter: increments would be lost.
        os.register_at_fork(after_in_child=self._forget_slot)

    def hit(self) -> None:
        """Counts one handled message of a worker that runs its handlers on one thread."""
        if not self._slot:
            self._take_slot()
        self._words[self._slot] += 1

    def hit_from_any_thread(self) -> None:
        """Counts one handled message of a worker that runs its handlers on several threads."""
        with self._lock:
            self.hit()

    def stamp(self, sent_at: float) -> None:
        """Records the time since `sent_at` (seconds of the wall clock)."""
        os.write(self._latencies, _LATENCY.pack(time.time() - sent_at))

    def _forget_slot(self) -> None:
        self._slot = 0

    def _take_slot(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        self._slot = self._words[0] + 1
        self._words[0] = self._slot
        fcntl.lockf(self._file, fcntl.LOCK_UN)


class ProbeReader:
    """The driver's side: creates the shared file, reads it and removes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-probe-")
        self.path = str(Path(self._folder.name) / "progress")
        Path(self.path).write_bytes(bytes(_SIZE))
        _latency_file(self.path).touch()
        self._file = Path(self.path).open("r+b")  # noqa: SIM115 - closed in __exit__
        self._map = mmap.mmap(self._file.fileno(), _SIZE)
        self._words = memoryview(self._map).cast("Q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.release()
        self._map.close()
        self._file.close()
        self._folder.cleanup()

    def count(self) -> int:
        """Returns how many messages all workers together have handled."""
        return sum(self._words[1 : 1 + self._words[0]])

    def forget_latencies(self) -> None:
        """Drops what was recorded so far, so that a warm-up does not count."""
        os.truncate(_latency_file(self.path), 0)

    def latencies_s(self) -> list[float]:
        """Returns the recorded latencies, sorted."""
        data = _latency_file(self.path).read_bytes()
        return sorted(value for (value,) in _LATENCY.iter_unpack(data))
