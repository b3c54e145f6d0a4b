"""How a worker process notices that whoever started it wants it to end, or is gone."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable

_STDIN = 0


def at_end_of_parent(function: Callable[[], None]) -> None:
    """Call the function when the parent closes the pipe that is our standard input, or dies with it."""

    def wait() -> None:
        # Not through sys.stdin: the interpreter wants its lock when it ends, and aborts if a thread holds it.
        while os.read(_STDIN, 1024):
            pass
        function()

    threading.Thread(target=wait, name="penstock-parent", daemon=True).start()


def let_go(child: subprocess.Popen[bytes]) -> None:
    """Close our end of the pipe, as the parent."""
    if child.stdin is not None:
        child.stdin.close()
