"""A Spark driver in a process of its own, which a test can read, kill and end."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
# What programs import that a test starts: the tests, and the same Penstock as the test itself.
PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
PATIENCE_S = 240.0  # a driver, its executors and their Pythons start on cores that are busy with other tests
_TAIL = 4_000


class Process:
    """A program whose lines are collected as they come; it and all that it starts can be killed together."""

    def __init__(self, command: list[str], place: Path, env: Mapping[str, str] | None = None) -> None:
        self._lines: list[str] = []
        self._is_over = False
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end tells Spark's Java that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=place,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # a group of its own: kill() reaches Python and Java at the same moment
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """Returns what it has said so far."""
        with self._changed:
            return list(self._lines)

    def wait_for_line(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """Waits for a line that the pattern finds, from the beginning on, and returns the match."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    match = re.search(pattern, line)
                    if match:
                        return match
                seen = len(self._lines)
                if self._is_over:
                    raise AssertionError(f"it ended without saying {pattern!r}:\n{self._tail()}")
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise AssertionError(f"it did not say {pattern!r} in {timeout_s} s:\n{self._tail()}")

    def kill(self) -> None:
        """Kills it with SIGKILL, together with everything that it has started, and waits until it is gone."""
        with suppress(ProcessLookupError):  # all of them are gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reap()

    def end(self, timeout_s: float = PATIENCE_S) -> list[str]:
        """Waits until it ends by itself, checks that it ended well and returns what it said."""
        code = self.code(timeout_s)
        self._reap()
        assert code == 0, f"it ended with {code}:\n{self._tail()}"
        return self.lines()

    def code(self, timeout_s: float = PATIENCE_S) -> int:
        """Waits until it ends by itself, and returns the code that it ends with."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end in {timeout_s} s:\n{self._tail()}") from None

    def open_gate(self, gate: Path, timeout_s: float = PATIENCE_S) -> None:
        """Lets the reader of a named pipe go on, which must come to it in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:  # else it has no reader yet
                    raise
            else:
                return
            if not self.is_alive() or time.monotonic() > deadline:
                raise AssertionError(f"nobody reads {gate}:\n{self._tail()}")
            time.sleep(0.01)  # the reader is another process: there is no event to wait for

    def _reap(self) -> None:
        self._process.wait(PATIENCE_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        # Java holds the same pipe, and dumps its last words into it after Python has ended.
        self._reader.join(timeout=PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _tail(self) -> str:
        return "\n".join(self._lines)[-_TAIL:]


class Driver(Process):
    """A Python script that uses Spark: `Driver(script, tmp_path, *arguments)`; it prints for the test to read."""

    def __init__(self, script: str, place: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        file = place / f"driver_{len(list(place.glob('driver_*.py')))}.py"
        file.write_text(script, encoding="utf-8")
        super().__init__(
            [sys.executable, "-u", str(file), *arguments], place, {"PYTHONPATH": PYTHONPATH, **(env or {})}
        )
