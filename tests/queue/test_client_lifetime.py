"""A queue works for as long as somebody has it, whatever becomes of the variable that held its client."""

from __future__ import annotations

import gc

import pytest
from redis import asyncio as driver

from penstock import RedisMessageQueue


@pytest.mark.usefixtures("default_server")
async def test_a_queue_keeps_the_client_that_nobody_else_keeps(redis_url: str) -> None:
    queue = RedisMessageQueue("orders", client=driver.Redis.from_url(redis_url, decode_responses=True))
    gc.collect()
    assert await queue.publish("one")
    async with queue.process_message() as message:
        assert message == "one"
    await queue.close()
