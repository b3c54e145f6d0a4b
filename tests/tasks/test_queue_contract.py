"""Every queue keeps the contract that authors of other queues test theirs with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock import StreamClient
from penstock.tasks import RedisTaskQueue, StubQueue
from penstock.testing import Cluster
from penstock.testing.task_queue_contract import TaskQueueContract

pytestmark = pytest.mark.every_server

DeadIds = Callable[[RedisTaskQueue], Awaitable[list[str]]]


async def dead_in_redis(queue: RedisTaskQueue) -> list[str]:
    return [letter.task_id async for letter in queue.dead.iterate()]


class TestStubQueue(TaskQueueContract):
    @pytest.fixture
    async def queue(self) -> StubQueue:
        return StubQueue()

    @pytest.fixture
    def dead_ids(self) -> Callable[[StubQueue], Awaitable[list[str]]]:
        async def dead_in_memory(queue: StubQueue) -> list[str]:
            return [letter.task_id for letter in queue.dead]

        return dead_in_memory


class TestRedisTaskQueue(TaskQueueContract):
    @pytest.fixture
    async def queue(self, redis_url: str) -> AsyncIterator[RedisTaskQueue]:
        async with RedisTaskQueue(redis_url) as queue:
            yield queue

    @pytest.fixture
    async def other(self, redis_url: str) -> AsyncIterator[RedisTaskQueue]:
        async with RedisTaskQueue(redis_url) as queue:
            yield queue

    @pytest.fixture
    def dead_ids(self) -> DeadIds:
        return dead_in_redis


class TestRedisTaskQueueInACluster(TaskQueueContract):
    @pytest.fixture
    async def client(self, cluster: Cluster) -> AsyncIterator[StreamClient]:
        url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
        async with StreamClient.from_url(url) as client:
            yield client

    @pytest.fixture
    async def queue(self, client: StreamClient) -> AsyncIterator[RedisTaskQueue]:
        async with RedisTaskQueue(client) as queue:
            yield queue

    @pytest.fixture
    async def other(self, client: StreamClient) -> AsyncIterator[RedisTaskQueue]:
        async with RedisTaskQueue(client, encoding="json") as queue:
            yield queue

    @pytest.fixture
    def dead_ids(self) -> DeadIds:
        return dead_in_redis
