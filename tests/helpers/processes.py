"""Processes that a test starts, and that do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
