"""The worker processes of the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Self

from penstock.cli.supervisor import close_pipe
from penstock.errors import PenstockError

_STOP_S = 10.0


class DemoWorkerEnded(PenstockError):
    """A worker process ended that nobody had killed."""


class DemoWorkers:
    """Workers by name; leaving the `with` block ends all of them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def names(self) -> list[str]:
        """The workers that should be alive."""
        return list(self._workers)

    def start(self, name: str) -> None:
        """Start a worker process."""
        self._workers[name] = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.demo.worker", self._url, name],
            stdin=subprocess.PIPE,  # the worker ends when this pipe is closed, or this process has died
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; we end the workers in order
        )

    def kill(self, name: str) -> float:
        """Kill a worker on the spot and return the time at which that was; it is dead when this returns."""
        worker = self._workers.pop(name)
        killed_at_s = time.time()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        close_pipe(worker)
        return killed_at_s

    def check(self) -> None:
        """Raise DemoWorkerEnded if a worker has ended by itself."""
        for name, worker in self._workers.items():
            code = worker.poll()
            if code is not None:
                raise DemoWorkerEnded(f"demo worker {name} ended with code {code}; see its output above")

    def stop(self) -> None:
        """End all workers: politely, then not."""
        for worker in self._workers.values():
            close_pipe(worker)
        deadline = time.monotonic() + _STOP_S
        try:
            for worker in self._workers.values():
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self._workers.values():
                worker.kill()
                worker.wait()
            self._workers.clear()
