"""Distinguishes the objects of redis-py. Shared by the async and sync APIs: each must recognize those of the other."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import redis
import redis.asyncio
from redis import cluster as blocking_cluster
from redis import sentinel as blocking_sentinel
from redis.asyncio import cluster as asyncio_cluster
from redis.asyncio import sentinel as asyncio_sentinel

_PIPELINES = (
    redis.client.Pipeline,
    redis.asyncio.client.Pipeline,
    blocking_cluster.ClusterPipeline,
    asyncio_cluster.ClusterPipeline,
)


class DriverClient(Protocol):
    """A redis-py client, blocking or asyncio, for one server or a cluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""


def is_pipeline(client: Any) -> bool:
    """Return whether it is a pipeline."""
    return isinstance(client, _PIPELINES)


def is_sentinel(client: Any) -> bool:
    """Return whether it connects to Sentinels rather than to a server with data."""
    return isinstance(client, (blocking_sentinel.Sentinel, asyncio_sentinel.Sentinel))


def is_awaited(client: Any) -> bool:
    """Return whether it is an asyncio client.

    Judged by its connection class where that is visible: a wrapper may have any methods.
    """
    pool, nodes = getattr(client, "connection_pool", None), getattr(client, "nodes_manager", None)
    if isinstance(pool, redis.asyncio.ConnectionPool) or isinstance(nodes, asyncio_cluster.NodesManager):
        return True
    if isinstance(pool, redis.ConnectionPool) or isinstance(nodes, blocking_cluster.NodesManager):
        return False
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))
