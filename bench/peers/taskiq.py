"""taskiq with the stream broker of taskiq-redis; the worker is taskiq's own command with one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.peers.adapter import AsyncAdapter
from bench.peers.payload import Message


class Taskiq(AsyncAdapter):
    """Publishes by kicking a task."""

    async def open(self) -> None:
        """Connects the broker."""
        from bench.peers import taskiq_app

        self._app = taskiq_app
        await self._app.broker.startup()

    async def close(self) -> None:
        """Disconnects the broker."""
        await self._app.broker.shutdown()

    async def publish(self, message: Message) -> None:
        """Kicks one task."""
        await self._app.handle.kiq(message)

    def work(self) -> None:
        """Becomes taskiq's worker."""
        program = Path(sys.executable).with_name("taskiq")
        options = ["--workers", "1", "--log-level", "WARNING", "--no-configure-logging"]
        os.execv(program, ["taskiq", "worker", "bench.peers.taskiq_app:broker", *options])


ADAPTER = Taskiq
