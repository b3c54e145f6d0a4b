"""Penstock with its default, safe settings, on uvloop like the limit; variants `batch` and `each`."""

from __future__ import annotations

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.params import GROUP, STREAM
from bench.peers.payload import Message
from penstock import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage, StreamProducer

# The default of 100,000 refuses to publish more than that ahead of the consumer; the tests build larger backlogs.
_MAX_LEN = 1_000_000


class Penstock(AsyncAdapter):
    """Publishes with `StreamProducer` and drains with `StreamConsumer`."""

    uses_uvloop = True

    async def open(self) -> None:
        """Connects and creates the group."""
        self._client = StreamClient(host="127.0.0.1", port=self.params.port)
        self._producer = StreamProducer(self._client, STREAM, group=GROUP, max_len=_MAX_LEN)
        await self._producer.ensure_group()

    async def close(self) -> None:
        """Disconnects."""
        await self._producer.close()
        await self._client.close()

    async def publish(self, message: Message) -> None:
        """Publishes one message."""
        await self._producer.push(message)

    async def publish_many(self, messages: list[Message]) -> None:
        """Publishes a batch."""
        await self._producer.push_many(messages)

    def work(self) -> None:
        """Runs a consumer with a batch handler or a handler for each message."""
        self.run(self._drain())

    async def _drain(self) -> None:
        handle = async_handler(self.params)

        async def handle_batch(messages: list[StreamMessage]) -> list[str]:
            for message in messages:
                await handle(message.data)
            return [message.id for message in messages]

        async def handle_each(message: StreamMessage) -> None:
            await handle(message.data)

        async with StreamClient(host="127.0.0.1", port=self.params.port) as client:
            if self.params.variant == "each":
                consumer = StreamConsumer(client, STREAM, self._config(), message_handler=handle_each)
            else:
                consumer = StreamConsumer(client, STREAM, self._config(), handler=handle_batch)
            await consumer.run()

    def _config(self) -> ConsumerConfig:
        if self.params.recovery_interval_ms:
            return ConsumerConfig(group=GROUP, recovery_interval_ms=self.params.recovery_interval_ms)
        return ConsumerConfig(group=GROUP)


ADAPTER = Penstock
