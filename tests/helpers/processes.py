"""Processes that a test starts, and that do not outlive it; and what runs on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_S = 60.0


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Starts a process, waits at the end of the block until it ends by itself, and kills it where the block fails.

    Popen alone would wait for ever then. What the process has started is killed as well: it may hold the same pipes.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
            process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


class Listed(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    command: str  # its words, separated by blanks; nothing of a process that has ended


def listed() -> list[Listed]:
    """Returns all processes: from /proc, for `ps` is missing from small installations of Linux, or else from `ps`."""
    if Path("/proc/self/stat").exists():
        return [found for place in Path("/proc").glob("[0-9]*") if (found := _read(place))]
    words = ["ps", "-axww", "-o", "pid=,ppid=,command="]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in lines]
    return [Listed(int(pid), int(parent), command) for pid, parent, command in rows]


def _read(place: Path) -> Listed | None:
    try:
        parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        words = (place / "cmdline").read_bytes()
    except OSError:  # it has ended
        return None
    return Listed(int(place.name), parent, words.replace(b"\0", b" ").decode(errors="replace").strip())
