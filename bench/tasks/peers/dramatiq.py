"""dramatiq: Results middleware on Redis, its own command with one process and 8 threads."""

from __future__ import annotations

import os
import sys

from bench.tasks.peers.setting import COUNT, ROLE, payload

if __name__ == "__main__":
    if ROLE == "fill":
        from bench.tasks.peers.dramatiq_app import noop

        for number in range(COUNT):
            noop.send(payload(number))
    else:
        words = ["-m", "dramatiq", "bench.tasks.peers.dramatiq_app", "--processes", "1", "--skip-logging"]
        os.execv(sys.executable, [sys.executable, *words])
