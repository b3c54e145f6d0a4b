"""Child processes, each in a session of its own: signalled and ended as a group, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_END_S = 30.0


class Child:
    """One worker or producer; its journal is `<folder>/<name>.journal`, its log `<folder>/<name>.log`."""

    def __init__(self, name: str, module: str, job: dict[str, Any], folder: Path) -> None:
        self.name, self.job, self.module = name, job, module
        self.log = folder / f"{name}.log"
        self._journal = folder / f"{name}.journal"
        described = {**job, "journal": str(self._journal)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(described)],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        self.is_expected_to_end = False
        self.is_frozen = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        return self.code is None

    @property
    def is_at_work(self) -> bool:
        """Whether the process has come so far that it keeps its journal."""
        return self._journal.exists() and self._journal.stat().st_size > 0

    def send(self, number: signal.Signals) -> None:
        """Signal the process and all that it started; SIGTERM is for the process alone, which ends the others."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                (os.kill if number is signal.SIGTERM else os.killpg)(self._process.pid, number)

    def end(self, number: signal.Signals) -> None:
        """Have the process end; what becomes of it is no surprise then."""
        self.is_expected_to_end = True
        self.send(number)

    def freeze(self) -> None:
        self.is_frozen = True
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.is_frozen = False
        self.send(signal.SIGCONT)

    def wait(self, timeout_s: float = _END_S) -> bool:
        """Return whether the process has ended in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return not self.is_alive

    def close(self) -> None:
        """Kill whatever is left of it."""
        self.end(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-1_500:].strip()


def end_with_the_parent() -> None:
    """Have this process end when the one that started it is gone."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
