from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis.halves import AsyncHalf, Half, SyncHalf


@pytest.fixture(params=[AsyncHalf, SyncHalf], ids=lambda made: made.name)
def half(request: pytest.FixtureRequest) -> Iterator[Half]:
    """One half of the library, then the other."""
    half: Half = request.param()
    yield half
    half.close()


@pytest.fixture
def async_half() -> Iterator[AsyncHalf]:
    """The asyncio half, for what only it can do."""
    half = AsyncHalf()
    yield half
    half.close()
