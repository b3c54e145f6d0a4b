"""What the tests of queues share: ways to the server under test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from penstock import StreamClient


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def driver(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of redis-py, of this half."""
    async with redis.asyncio.Redis.from_url(redis_url) as driver:
        yield driver
