"""The client that a queue was given is the queue's for as long as it lives."""

from __future__ import annotations

import gc

import pytest
from redis import asyncio as driver

from penstock import RedisGateway, RedisMessageQueue


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("is_gateway", [False, True])
async def test_a_client_that_nobody_else_holds_lives_as_long_as_its_queue(redis_url: str, is_gateway: bool) -> None:
    if is_gateway:
        queue = RedisMessageQueue("orders", gateway=RedisGateway(redis_client=driver.Redis.from_url(redis_url)))
    else:
        queue = RedisMessageQueue("orders", client=driver.Redis.from_url(redis_url))
    gc.collect()
    await queue.publish("a")
    async with queue.process_message() as message:
        assert message == b"a"
    await queue.close()
