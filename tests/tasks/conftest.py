"""What the tests of tasks share: a client of the server under test, and queues on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock import StreamClient
from penstock.tasks import RedisTaskQueue


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[RedisTaskQueue]:
    async with RedisTaskQueue(redis_url, "jobs") as queue:
        yield queue


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[RedisTaskQueue]:
    """The same queue as another process has it."""
    async with RedisTaskQueue(redis_url, "jobs") as queue:
        yield queue
