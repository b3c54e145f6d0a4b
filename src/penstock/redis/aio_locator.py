"""Finds the server that serves a key, asyncio half.

redis-py makes the connection (TCP, TLS, AUTH, SELECT) and knows Sentinel and cluster topology. The twin is
blocking_locator.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import redis.asyncio as driver
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from penstock.errors import ConnectionFailed
from penstock.redis.aio import Connection
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import connect_error, told_cause

T = TypeVar("T")


async def _heeded(step: Awaitable[T]) -> T:
    """Wait for something that redis-py does, and be cancelled even if it swallows that.

    It waits with asyncio.wait_for(), which before Python 3.12 forgets a cancellation that comes in the moment in which
    it is done: whoever was cancelled would go on for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await step
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


def _no_retry() -> Retry:
    # The driver never repeats anything: what may be repeated is decided in retry.py.
    return Retry(NoBackoff(), 0)


class Locator:
    """Finds the server that serves a key, and opens connections to it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._cluster: driver.RedisCluster | None = None
        self._sentinels = settings.hosts  # the one that knew the master is asked first
        self._master: Host | None = None
        self._refreshed = 0
        self._seen: set[Host] = set()
        self._lock = asyncio.Lock()

    async def locate(self, key: str) -> Host:
        """Return host and port of the server for the key."""
        try:
            if self._settings.kind == "cluster":
                node = (await self._topology()).get_node_from_key(key)
                if node is None:
                    raise ConnectionFailed(f"no node of the cluster at {self._settings.where} serves {key!r}")
                return node.host, int(node.port)
            if self._settings.kind == "sentinel":
                return self._master or await self._find_master()
        except (OSError, driver.RedisError, RedisClusterException) as error:  # the latter is none of the former
            raise connect_error(error, self._settings.where) from told_cause(error)
        return self._settings.hosts[0] if self._settings.hosts else ("", 0)

    async def masters(self) -> list[Host]:
        """Return every server that serves keys: one, or all masters of a cluster."""
        if self._settings.kind != "cluster":
            return [await self.locate("")]
        try:
            return [(str(node.host), int(node.port)) for node in (await self._topology()).get_primaries()]
        except (OSError, driver.RedisError, RedisClusterException) as error:
            raise connect_error(error, self._settings.where) from told_cause(error)

    async def refresh(self) -> None:
        """Ask for the topology again at the next look-up."""
        self._master = None
        self._refreshed += 1
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.aclose()

    async def connect(self, host: Host) -> Connection:
        """Open a connection to the server."""
        settings = self._settings
        where = settings.where if settings.kind in ("single", "unix") else f"{host[0]}:{host[1]}"
        options = settings.driver_options() | {"retry": _no_retry(), "db": settings.db}
        if settings.path:
            made: Any = driver.UnixDomainSocketConnection(path=settings.path, **options)
        elif settings.tls:
            made = driver.SSLConnection(host=host[0], port=host[1], **options, **settings.tls_options)
        else:
            made = driver.Connection(host=host[0], port=host[1], **options)
        try:
            # redis-py bounds the TCP connect and each reply of the handshake; this bounds the sum.
            async with asyncio.timeout(settings.connect_timeout_s):
                await _heeded(made.connect())
        except (OSError, TimeoutError, driver.RedisError) as error:
            await made.disconnect(nowait=True)
            raise connect_error(error, where) from error
        except BaseException:  # cancelled: the half-open connection is nobody's
            await made.disconnect(nowait=True)
            raise
        connection = Connection(settings.socket_timeout_s, where)
        # Taken from redis-py before it can close it.
        writer, made._writer, made._reader = made._writer, None, None  # noqa: SLF001
        connection.adopt(writer.transport, writer)
        return connection

    async def _topology(self) -> driver.RedisCluster:
        async with self._lock:
            if self._cluster is None:
                options = {**self._settings.driver_options(), **self._settings.tls_options}
                # Also those that were seen before: the given ones may be gone by now.
                nodes = [ClusterNode(host, port) for host, port in {*self._settings.hosts, *self._seen}]
                cluster = driver.RedisCluster(
                    startup_nodes=nodes,
                    ssl=self._settings.tls,
                    retry=_no_retry(),
                    **options,
                )
                try:
                    await _heeded(cluster.initialize())
                except BaseException:
                    await cluster.aclose()
                    raise
                self._seen = {(str(node.host), int(node.port)) for node in cluster.get_nodes()}
                self._cluster = cluster
            return self._cluster

    async def _find_master(self) -> Host:
        async with self._lock:
            if self._master is not None:
                return self._master
            refreshed = self._refreshed
            found = await self._ask_sentinels()
            if refreshed == self._refreshed:  # else somebody has met another master since: the next one asks again
                self._master = found
            return found

    async def _ask_sentinels(self) -> Host:
        # Made anew for one question: when two ask at once, redis-py loses clients on their way to the front.
        options = self._settings.sentinel_options() | {"retry": _no_retry()}
        sentinel = Sentinel(list(self._sentinels), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        clients = dict(zip(sentinel.sentinels, self._sentinels, strict=True))
        try:
            host, port = await _heeded(sentinel.discover_master(str(self._settings.service_name)))
            self._sentinels = tuple(clients[client] for client in sentinel.sentinels)
        finally:
            for client in clients:
                await client.aclose()
        return str(host), int(port)

    async def make_driver(self, host: Host) -> driver.Redis:
        """Return a redis-py client to one of the servers, for pub/sub and administration; the caller closes it."""
        settings = self._settings
        options = settings.driver_options() | {"retry": _no_retry(), "db": settings.db}
        if settings.path:
            return driver.Redis(unix_socket_path=settings.path, **options)
        return driver.Redis(host=host[0], port=host[1], ssl=settings.tls, **options, **settings.tls_options)

    async def close(self) -> None:
        """Close what was opened to learn the topology."""
        await self.refresh()
