"""redis-stream-queue: batch handler, batches of 100, JSON, all by default."""

from __future__ import annotations

from redis_stream_queue import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage, StreamProducer

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.params import GROUP, STREAM
from bench.peers.payload import Message

# The default of 100,000 trims entries that nobody has read yet; the tests build larger backlogs.
_MAX_LEN = 1_000_000


class RedisStreamQueue(AsyncAdapter):
    """Publishes with its `StreamProducer` and drains with its `StreamConsumer`."""

    async def open(self) -> None:
        """Connects and creates the group."""
        self._client = StreamClient(host="127.0.0.1", port=self.params.port)
        self._producer = StreamProducer(client=self._client, stream=STREAM, group=GROUP, max_len=_MAX_LEN)
        await self._producer.ensure_group()

    async def close(self) -> None:
        """Disconnects."""
        await self._client.close()

    async def publish(self, message: Message) -> None:
        """Publishes one message."""
        await self._producer.push(message)

    async def publish_many(self, messages: list[Message]) -> None:
        """Publishes a batch through one pipeline."""
        await self._producer.push_many(messages)

    def work(self) -> None:
        """Runs a consumer with a batch handler."""
        self.run(self._drain())

    async def _drain(self) -> None:
        handle = async_handler(self.params)

        async def handle_batch(messages: list[StreamMessage]) -> list[str]:
            for message in messages:
                await handle(message.data)
            return [message.id for message in messages]

        client = StreamClient(host="127.0.0.1", port=self.params.port)
        config = ConsumerConfig(group=GROUP)
        await StreamConsumer(client=client, stream=STREAM, config=config, handler=handle_batch).run()


ADAPTER = RedisStreamQueue
