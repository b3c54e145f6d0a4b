"""SAQ on Redis with its default of 10 jobs at once."""

from __future__ import annotations

from typing import Any

from saq import Queue, Worker

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.params import STREAM
from bench.peers.payload import Message


class Saq(AsyncAdapter):
    """Publishes by enqueueing a job."""

    async def open(self) -> None:
        """Connects."""
        self._queue = Queue.from_url(self.params.url, name=STREAM)
        await self._queue.connect()

    async def close(self) -> None:
        """Disconnects."""
        await self._queue.disconnect()

    async def publish(self, message: Message) -> None:
        """Enqueues one job without a stored result, since no other peer stores any here."""
        await self._queue.enqueue("handle", message=message, ttl=-1)

    def work(self) -> None:
        """Runs a worker."""
        self.run(self._drain())

    async def _drain(self) -> None:
        inner = async_handler(self.params)

        async def handle(_context: dict[str, Any], *, message: Message) -> None:
            await inner(message)

        queue = Queue.from_url(self.params.url, name=STREAM)
        await Worker(queue, functions=[("handle", handle)]).start()


ADAPTER = Saq
