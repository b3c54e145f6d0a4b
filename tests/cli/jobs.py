"""Handlers for worker processes of these tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from penstock import StreamMessage
from penstock.task import Task
from penstock.tasks import Handlers

handlers = Handlers()


@handlers.task("pid")
def pid(task: Task) -> int:
    return os.getpid()


@handlers.task("die")
def die(task: Task) -> str:
    if task.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


@handlers.task("until")
def until(task: Task) -> int:
    Path(str(task.payload["began"])).touch()
    while not Path(str(task.payload["gate"])).exists():
        time.sleep(0.01)  # nothing to wait for: the file appears from outside
    return os.getpid()


def ship(message: StreamMessage) -> None:
    """Handles a message of a stream."""
