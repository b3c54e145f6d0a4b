"""The message queue of Penstock with a client of redis-py and default settings; variants `async` and `sync`."""

from __future__ import annotations

import redis
import redis.asyncio

import penstock
import penstock.sync
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

    def _make(self) -> penstock.RedisMessageQueue:
        self._client = redis.asyncio.Redis.from_url(self.params.url, decode_responses=True)
        return penstock.RedisMessageQueue(STREAM, client=self._client)

    async def close(self) -> None:
        """Disconnects."""
        await self._queue.close()
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

    def _make(self) -> penstock.sync.RedisMessageQueue:
        client = redis.Redis.from_url(self.params.url, decode_responses=True)
        return penstock.sync.RedisMessageQueue(STREAM, client=client)

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
