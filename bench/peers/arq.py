"""arq with its defaults: 10 jobs at once, a poll every half second."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.payload import Message


class Arq(AsyncAdapter):
    """Publishes by enqueueing a job."""

    async def open(self) -> None:
        """Connects."""
        self._pool = await create_pool(self._settings())

    async def close(self) -> None:
        """Disconnects."""
        await self._pool.aclose()

    async def publish(self, message: Message) -> None:
        """Enqueues one job."""
        await self._pool.enqueue_job("handle", message)

    def work(self) -> None:
        """Runs a worker that keeps no results, since no other peer stores any here."""
        inner = async_handler(self.params)

        async def handle(_context: dict[str, Any], message: Message) -> None:
            await inner(message)

        # arq asks for the current event loop when it is built, which Python no longer makes by itself.
        asyncio.set_event_loop(asyncio.new_event_loop())
        job = func(handle, name="handle", keep_result=0)
        Worker(functions=[job], redis_settings=self._settings(), log_results=False).run()

    def _settings(self) -> RedisSettings:
        return RedisSettings(host="127.0.0.1", port=self.params.port)


ADAPTER = Arq
