"""What the tests of operations share: a client of the server under test, and an Inspector on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock import StreamClient
from penstock.ops import Inspector


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def inspector(client: StreamClient) -> Inspector:
    return Inspector(client)
