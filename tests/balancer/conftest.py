"""What the tests of the balancer share: a client of the server under test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock import StreamClient


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client
