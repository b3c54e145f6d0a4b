"""dramatiq on Redis; the worker is dramatiq's own command with one process and its default of 8 threads."""

from __future__ import annotations

import os
import sys

from bench.peers.adapter import BlockingAdapter
from bench.peers.payload import Message


class Dramatiq(BlockingAdapter):
    """Publishes by sending to an actor."""

    def open(self) -> None:
        """Loads the application, which connects on first use."""
        from bench.peers import dramatiq_app

        self._app = dramatiq_app

    def publish(self, message: Message) -> None:
        """Sends one message."""
        self._app.handle.send(message)

    def work(self) -> None:
        """Becomes dramatiq's worker."""
        options = ["--processes", "1", "--skip-logging"]
        os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "bench.peers.dramatiq_app", *options])


ADAPTER = Dramatiq
