"""FastStream on Redis Streams with a consumer group; variants `each` (one message a call) and `batch`."""

from __future__ import annotations

import os

from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.params import GROUP, STREAM
from bench.peers.payload import Message

_READ_COUNT = 100


class FastStreamPeer(AsyncAdapter):
    """Publishes through its broker and drains with one subscriber that acknowledges after the handler."""

    async def open(self) -> None:
        """Connects and creates the group at the start of the stream, which the subscriber would create at its end."""
        self._broker = RedisBroker(self.params.url, logger=None)
        self._client = Redis.from_url(self.params.url)
        await self._broker.start()
        try:
            await self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def close(self) -> None:
        """Disconnects."""
        await self._broker.stop()
        await self._client.aclose()

    async def publish(self, message: Message) -> None:
        """Publishes one message."""
        await self._broker.publish(message, stream=STREAM)

    async def publish_many(self, messages: list[Message]) -> None:
        """Publishes a batch through one pipeline, as the documentation shows."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for message in messages:
                await self._broker.publish(message, stream=STREAM, pipeline=pipeline)
            await pipeline.execute()

    def work(self) -> None:
        """Runs the application with one subscriber."""
        broker = RedisBroker(self.params.url, logger=None)
        handle = async_handler(self.params)
        is_batch = self.params.variant == "batch"
        stream = StreamSub(
            STREAM, group=GROUP, consumer=f"faststream-{os.getpid()}", max_records=_READ_COUNT, batch=is_batch
        )
        subscriber = broker.subscriber(stream=stream, ack_policy=AckPolicy.ACK)

        async def handle_batch(messages: list[dict]) -> None:  # type: ignore[type-arg] # read at run time by FastStream
            for message in messages:
                await handle(message)

        async def handle_each(message: dict) -> None:  # type: ignore[type-arg] # read at run time by FastStream
            await handle(message)

        subscriber(handle_batch if is_batch else handle_each)
        self.run(FastStream(broker, logger=None).run())


ADAPTER = FastStreamPeer
