"""redis-message-queue with default settings: deduplication on, leases of 300 s; variants `async` and `sync`."""

from __future__ import annotations

import redis
import redis.asyncio
from redis_message_queue import RedisMessageQueue
from redis_message_queue.asyncio import RedisMessageQueue as AsyncRedisMessageQueue

from bench.peers.adapter import Adapter, AsyncAdapter, BlockingAdapter
from bench.peers.handlers import async_handler, plain_handler
from bench.peers.params import STREAM, Params
from bench.peers.payload import Message
from bench.peers.queue_message import Unique, decoder


class AsyncQueue(AsyncAdapter):
    """Publishes and processes one message at a time."""

    async def open(self) -> None:
        """Makes the queue; it connects on first use."""
        self._unique = Unique(self.params)
        self._queue = self._make()

    def _make(self) -> AsyncRedisMessageQueue:
        self._client = redis.asyncio.Redis.from_url(self.params.url, decode_responses=True)
        return AsyncRedisMessageQueue(STREAM, client=self._client, deduplication=True)

    async def close(self) -> None:
        """Disconnects."""
        await self._client.aclose()

    async def publish(self, message: Message) -> None:
        """Publishes one message unless it was published before."""
        assert await self._queue.publish(self._unique.like(message))

    def work(self) -> None:
        """Processes messages."""
        self.run(self._drain())

    async def _drain(self) -> None:
        handle, decode, queue = async_handler(self.params), decoder(self.params), self._make()
        while True:
            async with queue.process_message() as message:
                if message is not None:
                    await handle(decode(message))


class SyncQueue(BlockingAdapter):
    """The same without asyncio."""

    def open(self) -> None:
        """Makes the queue; it connects on first use."""
        self._unique = Unique(self.params)
        self._queue = self._make()

    def _make(self) -> RedisMessageQueue:
        client = redis.Redis.from_url(self.params.url, decode_responses=True)
        return RedisMessageQueue(STREAM, client=client, deduplication=True)

    def publish(self, message: Message) -> None:
        """Publishes one message unless it was published before."""
        assert self._queue.publish(self._unique.like(message))

    def work(self) -> None:
        """Processes messages."""
        handle, decode, queue = plain_handler(self.params), decoder(self.params), self._make()
        while True:
            with queue.process_message() as message:
                if message is not None:
                    handle(decode(message))


def ADAPTER(params: Params) -> Adapter:  # noqa: N802 - the name by which adapters are found
    """Returns the half that the variant names."""
    return AsyncQueue(params) if params.variant == "async" else SyncQueue(params)
