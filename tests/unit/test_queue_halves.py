"""What belongs to one half of the library is refused by the other, with the name of the half where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import penstock
import penstock.sync
from penstock.errors import ConfigurationTypeError

NAME = "orders"


@pytest.fixture
def blocking() -> Iterator[redis.Redis]:
    with redis.Redis(port=1) as client:
        yield client


@pytest.fixture
def awaited() -> redis.asyncio.Redis:
    return redis.asyncio.Redis(port=1)


def delegate(client: Any) -> Any:
    class Wrapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    return Wrapped()


def test_a_client_of_the_other_half(blocking: redis.Redis, awaited: redis.asyncio.Redis) -> None:
    for client in (blocking, delegate(blocking)):
        with pytest.raises(TypeError, match=r"is a blocking redis-py client: use it with penstock\.sync"):
            penstock.RedisMessageQueue(NAME, client=client)
        with pytest.raises(TypeError, match=r"redis_client is a blocking redis-py client"):
            penstock.RedisGateway(redis_client=client)
        penstock.sync.RedisMessageQueue(NAME, client=client)
    for client in (awaited, delegate(awaited)):
        with pytest.raises(TypeError, match=r"is an asyncio redis-py client: use it with penstock$"):
            penstock.sync.RedisMessageQueue(NAME, client=client)
        penstock.RedisMessageQueue(NAME, client=client)


def test_a_stream_client_of_the_other_half() -> None:
    with pytest.raises(TypeError, match=r"or a StreamClient from penstock, not StreamClient"):
        penstock.RedisMessageQueue(NAME, client=penstock.sync.StreamClient.from_url("redis://127.0.0.1:1"))
    with pytest.raises(TypeError, match=r"or a StreamClient from penstock\.sync, not StreamClient"):
        penstock.sync.RedisMessageQueue(NAME, client=penstock.StreamClient.from_url("redis://127.0.0.1:1"))


def test_pipelines_and_sentinels_of_either_half(blocking: redis.Redis, awaited: redis.asyncio.Redis) -> None:
    for api in (penstock, penstock.sync):
        for pipeline in (blocking.pipeline(), awaited.pipeline()):
            with pytest.raises(TypeError, match="is a pipeline"):
                api.RedisMessageQueue(NAME, client=pipeline)
        for sentinel in (
            redis.sentinel.Sentinel([("127.0.0.1", 1)]),
            redis.asyncio.sentinel.Sentinel([("127.0.0.1", 1)]),
        ):
            with pytest.raises(TypeError, match="is a Sentinel"):
                api.RedisMessageQueue(NAME, client=sentinel)


def test_a_gateway_of_the_other_half(blocking: redis.Redis, awaited: redis.asyncio.Redis) -> None:
    with pytest.raises(TypeError, match=r"gateway is synchronous; use penstock\.sync\.RedisMessageQueue"):
        penstock.RedisMessageQueue(NAME, gateway=penstock.sync.RedisGateway(redis_client=blocking))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"gateway is asynchronous; use penstock\.RedisMessageQueue"):
        penstock.sync.RedisMessageQueue(NAME, gateway=penstock.RedisGateway(redis_client=awaited))  # type: ignore[arg-type]


async def make_key(message: Any) -> str:
    return str(message)


class Lookup:
    async def __call__(self, message: Any = None) -> str:
        return str(message)


def test_async_functions_belong_to_the_async_queue(blocking: redis.Redis, awaited: redis.asyncio.Redis) -> None:
    for function in (make_key, Lookup()):
        with pytest.raises(TypeError, match=r"get_deduplication_key is async: use penstock\.RedisMessageQueue"):
            penstock.sync.RedisMessageQueue(NAME, client=blocking, get_deduplication_key=function)
        penstock.RedisMessageQueue(NAME, client=awaited, get_deduplication_key=function)
    beats: dict[str, Any] = {"heartbeat_interval_seconds": 30, "on_heartbeat_failure": Lookup()}
    with pytest.raises(TypeError, match=r"on_heartbeat_failure is async: use penstock\.RedisMessageQueue"):
        penstock.sync.RedisMessageQueue(NAME, client=blocking, **beats)
    penstock.RedisMessageQueue(NAME, client=awaited, **beats)
    for api, client in ((penstock, awaited), (penstock.sync, blocking)):
        with pytest.raises(ConfigurationTypeError, match="on_event must be a plain function"):
            api.RedisMessageQueue(NAME, client=client, on_event=make_key)


@pytest.mark.usefixtures("default_server")
def test_a_coroutine_instead_of_a_key_is_refused_and_closed(redis_url: str, raw: redis.Redis) -> None:
    with penstock.sync.StreamClient.from_url(redis_url) as client:
        queue = penstock.sync.RedisMessageQueue(NAME, client=client, get_deduplication_key=lambda m: make_key(m))  # noqa: PLW0108
        with pytest.raises(TypeError, match="must return a str, not coroutine: use a plain function"):
            queue.publish("hello")
    assert raw.keys() == []
