"""The processes of a peer, each in a session of its own so that only they are ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self, TypedDict

from bench.environments import ROOT, Interpreter
from bench.peers.params import VARIABLE, Params

_PASS_LIMIT_S = 60.0
_END_PATIENCE_S = 5.0


class ChildFailed(RuntimeError):
    """A process of a peer ended or hung; the message is the end of its log."""


class Pass(TypedDict):
    """What a publisher answers after a pass."""

    wall_s: float
    late: int


class Child:
    """A process of a peer; killed with everything it started when the block is left."""

    def __init__(self, interpreter: Interpreter, params: Params) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", prefix="bench-", suffix=".log")  # noqa: SIM115 - closed in __exit__
        # The log also takes a worker's stdout: a pipe that nobody reads would block it in the end.
        self._process = subprocess.Popen(
            [interpreter.path, "-m", "bench.peers"],
            cwd=ROOT,
            env={**os.environ, **interpreter.environment(), VARIABLE: params.to_json()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if params.role == "publish" else self._log,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Returns the id of the process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._log.close()

    def check(self) -> None:
        """Raises ChildFailed if the process has ended."""
        if self._process.poll() is not None:
            raise self.failure("ended")

    def failure(self, what: str) -> ChildFailed:
        """Returns an error that tells what the process did and how its log ends."""
        self._log.flush()
        return ChildFailed(
            f"The process {what}: {Path(self._log.name).read_text()[-1500:].strip() or 'its log is empty'}"
        )

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Publisher(Child):
    """A process that publishes one pass after another."""

    def __enter__(self) -> Self:
        self._expect("READY")
        return self

    def __exit__(self, *unused: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_END_PATIENCE_S)
        super().__exit__(*unused)

    def publish(self, count: int) -> Pass:
        """Lets the process publish so many messages and returns what that took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"GO {count}\n")
        self._process.stdin.flush()
        answer: Pass = json.loads(self._expect("DONE"))
        return answer

    def _expect(self, word: str) -> str:
        assert self._process.stdout is not None
        watchdog = threading.Timer(_PASS_LIMIT_S, self._kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                if line.startswith(word):
                    return line.removeprefix(word).strip()
        finally:
            watchdog.cancel()
        self._kill()  # __exit__ does not run where __enter__ fails
        raise self.failure(f"ended before {word}")


class Worker(Child):
    """A process that handles messages until it is killed."""
