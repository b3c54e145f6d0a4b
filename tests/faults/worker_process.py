"""A worker process as a test sees it: what it has said so far, and signals to it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

from tests.faults.waiting import PATIENCE_S

Line: TypeAlias = dict[str, Any]
_ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """One `tests.faults.worker`, or another module like it; its lines are collected as they come."""

    def __init__(self, job: dict[str, Any], log: Path, module: str = "tests.faults.worker") -> None:
        self.log = log
        self._lines: list[Line] = []
        self._changed = threading.Condition()
        self._is_over = False
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(job)],
                stdin=subprocess.PIPE,  # its end tells the worker that we are gone
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=_ROOT,
            )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _read(self) -> None:
        rest = b""
        while not self._is_over:
            select.select([self._pipe], [], [])
            with self._changed:  # a line is in the pipe or in the list, never in between
                received = os.read(self._pipe, 1 << 16)
                *lines, rest = (rest + received).split(b"\n")
                self._lines += map(json.loads, lines)
                self._is_over = not received
                self._changed.notify_all()

    def _has_caught_up(self) -> bool:
        return self._is_over or not any(fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0" * 4))

    def said(self, did: str, **facts: object) -> list[Line]:
        """Returns the lines of a kind, with these facts, of all that the process has said up to now."""
        with self._changed:
            self._changed.wait_for(self._has_caught_up, PATIENCE_S)
            return self._matching(did, facts)

    def _matching(self, did: str, facts: dict[str, object]) -> list[Line]:
        wanted = {"did": did, **facts}
        return [line for line in self._lines if all(line.get(key) == value for key, value in wanted.items())]

    def wait_for(self, did: str, count: int = 1, timeout_s: float = PATIENCE_S, **facts: object) -> Line:
        """Returns the nth line of a kind, when it is there."""

        def is_there() -> bool:
            return len(self._matching(did, facts)) >= count or self._is_over

        with self._changed:
            self._changed.wait_for(is_there, timeout_s)
            found = self._matching(did, facts)
        assert len(found) >= count, f"no {did} {facts} from worker {self.pid}\n{self.last_words()}"
        return found[count - 1]

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self._process.poll() is None:
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stops the process as a whole and returns when it stands still."""
        self.send(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"worker {self.pid} ended instead: {status}"

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Returns the exit code, negative for the signal that ended it, when all that it said has been read."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {self.pid} did not end within {timeout_s} s\n{self.last_words()}") from None
        self._reader.join(timeout_s)
        return code

    def kill(self) -> int:
        """Kills the process on the spot."""
        self.send(signal.SIGKILL)
        return self.wait()

    def stop(self) -> int:
        """Asks the process to end, and waits for it."""
        self.send(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Kills the process if it lives, and lets go of its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def last_words(self) -> str:
        """Returns the story of a process that does not do what it should, and where its threads and tasks are."""
        if self.is_alive():
            self.send(signal.SIGUSR1)
            self.send(signal.SIGUSR2)
            time.sleep(0.5)  # for the report only: it writes to its log
        return self.story()

    def story(self) -> str:
        """Returns the last of what the process said and logged, for a message."""
        said = [json.dumps(line) for line in self._lines[-30:]]
        return "\n".join([*said, "--- log", *self.log.read_text(errors="replace").splitlines()[-200:]])
