"""What the compatibility tests share: a client of each library, on one server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis_stream_queue as rsq

from penstock import StreamClient
from penstock.redis.embedded import LOOPBACK, EmbeddedServer


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def old_client(server: EmbeddedServer) -> AsyncIterator[rsq.StreamClient]:
    """A client of redis-stream-queue; what that library keeps for the whole process is forgotten afterwards."""
    yield rsq.StreamClient(host=LOOPBACK, port=server.port)
    for pooled in rsq.StreamClient._pools.values():
        await pooled.connection_pool.disconnect()  # close() leaves a pool open that redis-py was handed
    await rsq.StreamClient.close_all()
    rsq.StreamClient._lock = None
    rsq.ConsumerGroup._known.clear()
