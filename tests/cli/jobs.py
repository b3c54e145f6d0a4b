"""Handlers for worker processes of these tests."""

from __future__ import annotations

import os
import signal

from penstock.task import Task
from penstock.tasks import Handlers

handlers = Handlers()


@handlers.task("pid")
def pid(task: Task) -> int:
    return os.getpid()


@handlers.task("die")
def die(task: Task) -> str:
    if task.attempts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"
