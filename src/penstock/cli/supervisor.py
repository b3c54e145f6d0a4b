"""Keeps worker processes alive: starts them, starts them again when they end, and ends them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import typer

from penstock.cli.shown import print_status, say
from penstock.policy import doubling
from penstock.shutdown import SignalWatch

SUPERVISED = "PENSTOCK_SUPERVISED"  # the number of a worker, which ends with its supervisor
RESTART = 75  # the exit code of a supervised worker whose time is up: start another one
_STDIN = 0
_POLL_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_STABLE_S = 30.0  # uptime after which the next pause is short again
_PATIENCE_S = 15.0  # beyond the grace that handlers have


class Child:
    """One worker process, with its successors."""

    def __init__(self, number: int, command: list[str], *, is_burst: bool) -> None:
        self._number, self._command, self._is_burst = number, command, is_burst
        self.process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._failures = 0
        self.start_at_s = 0.0
        self.is_done = self.has_failed = False

    def start(self) -> None:
        """Start the process."""
        environment = {**os.environ, SUPERVISED: str(self._number)}
        # A group of its own: Ctrl-C goes to the supervisor alone, which stops each child once.
        self.process = subprocess.Popen(self._command, env=environment, stdin=subprocess.PIPE, process_group=0)
        self._started_s = time.monotonic()

    def check(self, warn: Callable[[str], None]) -> None:
        """Notice its end, and start the next one when it is due."""
        now = time.monotonic()
        if self.is_done:
            return
        if self.process is None:
            if now >= self.start_at_s:
                self.start()
            return
        code = self.process.poll()
        if code is None:
            return
        self._close()
        if code == 0:
            self.is_done = True  # it had nothing left to do, or was asked to end
        elif code == RESTART:
            self.start_at_s = now
        elif self._is_burst and code > 0:
            self.is_done = self.has_failed = True  # it has printed why; the supervisor fails as well
        else:
            self._failures = 1 if now - self._started_s > _STABLE_S else self._failures + 1
            pause_s = doubling(_FIRST_PAUSE_S, self._failures, _LONGEST_PAUSE_S)
            self.start_at_s = now + pause_s
            warn(f"worker {self._number} ended with {describe(code)}; restarting in {pause_s:g} s")

    def _close(self) -> None:
        self.request_end()
        self.process = None

    def request_end(self) -> None:
        """Ask the process to shut down gracefully.

        Not by a signal, of which the second one kills: service managers send theirs to every process of a service.
        """
        if self.process is not None:
            close_pipe(self.process)

    def wait(self, deadline_s: float) -> None:
        """Wait for its end, and kill it when the time is over."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close()


class Supervisor:
    """Runs worker processes until it is asked to end, or all of them have nothing left to do.

    `report` gets what happens in the ordinary course of things, `warn` what should not happen.
    """

    def __init__(
        self,
        count: int,
        command: list[str],
        report: Callable[[str], None],
        warn: Callable[[str], None],
        *,
        grace_s: float,
        is_burst: bool = False,
        watched: Path | None = None,
    ) -> None:
        self._children = [Child(number, command, is_burst=is_burst) for number in range(count)]
        self._report, self._warn, self._patience_s = report, warn, grace_s + _PATIENCE_S
        self._watched = WatchedFolder(watched) if watched is not None else None
        self._stop = threading.Event()

    def run(self) -> bool:
        """Supervise; return whether all went well."""
        unsubscribe = SignalWatch.subscribe(self._stop.set)
        try:
            while not self._stop.wait(_POLL_S):
                if self._watched is not None and (changed := self._watched.changed()):
                    self._report(f"{changed} changed; restarting the workers")
                    self._end_all()
                    for child in self._children:
                        child.start_at_s, child.is_done, child.has_failed = 0.0, False, False
                for child in self._children:
                    child.check(self._warn)
                if self._watched is None and all(child.is_done for child in self._children):
                    break
        finally:
            self._end_all()
            unsubscribe()
        return not any(child.has_failed for child in self._children)

    def _end_all(self) -> None:
        for child in self._children:
            child.request_end()
        deadline_s = time.monotonic() + self._patience_s
        for child in self._children:
            child.wait(deadline_s)


class WatchedFolder:
    """The Python files of a folder, and when they were changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = self._scan()

    def _scan(self) -> dict[Path, int]:
        found = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__", "node_modules", "venv"))]
            for name in files:
                if name.endswith((".py", ".toml")):
                    path = Path(folder, name)
                    try:
                        found[path] = path.stat().st_mtime_ns
                    except FileNotFoundError:
                        continue
        return found

    def changed(self) -> str:
        """Return the name of a file that was changed, added or removed since the last call; '' = none was."""
        now = self._scan()
        before, self._known = self._known, now
        return next((path.name for path in {*before, *now} if before.get(path) != now.get(path)), "")


def describe(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def supervise(processes: int, *, watch: bool, is_burst: bool, grace_s: float) -> None:
    """Run this very command in several processes, or in one that restarts when a file changes, until a signal."""
    # The same words, so that no option can be forgotten here; a process that is supervised starts no others.
    command = [sys.executable, "-m", "penstock", *sys.argv[1:]]
    watched = Path.cwd() if watch else None
    made = Supervisor(processes, command, print_status, say, grace_s=grace_s, is_burst=is_burst, watched=watched)
    if not made.run():
        raise typer.Exit(1)


@contextmanager
def signals_recorded() -> Iterator[None]:
    """Record signals from here on: code in the body that subscribes later is called for an earlier signal.

    Entered before a process prints that it works: a reader of that line may end it immediately.
    """
    unsubscribe = SignalWatch.subscribe(lambda: None)
    try:
        yield
    finally:
        unsubscribe()


# --- the pipe between a process and its parent ------------------------------------------------------


def at_end_of_parent(function: Callable[[], None]) -> None:
    """Call the function when the parent closes the pipe that is our standard input, or dies with it."""

    def wait() -> None:
        # Not through sys.stdin: the interpreter takes its lock when it ends, and aborts if a thread holds it.
        while os.read(_STDIN, 1024):
            pass
        function()

    threading.Thread(target=wait, name="penstock-parent", daemon=True).start()


def close_pipe(child: subprocess.Popen[bytes]) -> None:
    """Close our end of the pipe, as the parent."""
    if child.stdin is not None:
        child.stdin.close()


def metrics_place(host: str, port: int | None) -> tuple[str, int] | None:
    """Return where this process serves its metrics: each has a port of its own, unless 0 picks free ones."""
    return None if port is None else (host, port + (supervised_number() or 0) if port else 0)


@cache
def supervised_number() -> int | None:
    """Return which worker of its supervisor this process is; None if it is not supervised."""
    number = os.environ.pop(SUPERVISED, "")  # what a handler starts is no worker of the supervisor
    return int(number) if number.isdigit() else None
