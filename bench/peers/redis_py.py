"""redis-py's asyncio client as most people write it: 100 entries a read, one XACK a batch, json, no overlap."""

from __future__ import annotations

import json
import os
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.params import GROUP, STREAM
from bench.peers.payload import Message

_READ_COUNT = 100
_BLOCK_MS = 2000


class RedisPy(AsyncAdapter):
    """Publishes and drains with plain commands."""

    async def open(self) -> None:
        """Connects and creates the group."""
        # The older protocol, because the shape of a stream reply differs between the two.
        self._redis = Redis(port=self.params.port, protocol=2)
        try:
            await self._redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def close(self) -> None:
        """Disconnects."""
        await self._redis.aclose()

    async def publish(self, message: Message) -> None:
        """Sends one XADD."""
        await self._redis.xadd(STREAM, {"data": json.dumps(message)})

    async def publish_many(self, messages: list[Message]) -> None:
        """Sends one XADD a message through one pipeline."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for message in messages:
                pipeline.xadd(STREAM, {"data": json.dumps(message)})
            await pipeline.execute()

    def work(self) -> None:
        """Drains the stream until the process is killed."""
        self.run(self._drain())

    async def _drain(self) -> None:
        handle = async_handler(self.params)
        await self.open()
        consumer = f"redis-py-{os.getpid()}"
        while True:
            reply: Any = await self._redis.xreadgroup(
                GROUP, consumer, {STREAM: ">"}, count=_READ_COUNT, block=_BLOCK_MS
            )
            for _, entries in reply or []:
                for _, fields in entries:
                    await handle(json.loads(fields[b"data"]))
                await self._redis.xack(STREAM, GROUP, *(entry_id for entry_id, _ in entries))


ADAPTER = RedisPy
