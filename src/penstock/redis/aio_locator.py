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
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from penstock.errors import ConnectionFailed
from penstock.redis.aio import Connection
from penstock.redis.master_watch import MasterWatch, Tied, replaced, watch_of
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import connect_error
from penstock.runtime.aio import call_in_loop

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


class _Attempt:
    """A connection that is being opened."""

    def __init__(self) -> None:
        self.scope = asyncio.timeout(None)
        self.is_open = True
        self._loop = asyncio.get_running_loop()

    def abort_from_outside(self) -> None:
        """Wait for it no longer."""
        call_in_loop(self._loop, self._abort)

    def _abort(self) -> None:
        if self.is_open:
            self.scope.reschedule(self._loop.time())


class Locator:
    """Finds the server that serves a key, and opens connections to it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._cluster: driver.RedisCluster | None = None
        self._watch = watch_of(settings)
        self._refreshed = self._answered = 0  # where they differ, the Sentinels are asked again
        self._master: Host | None = None  # as it was located last
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
            if self._watch is not None:
                master = self._watch.master if self._refreshed == self._answered else None
                self._master = master or await self._find_master(self._watch)
                return self._master
        except (OSError, driver.RedisError, RedisClusterException) as error:  # the latter is none of the former
            raise connect_error(error, self._settings.where) from error
        return self._settings.hosts[0] if self._settings.hosts else ("", 0)

    async def masters(self) -> list[Host]:
        """Return every server that serves keys: one, or all masters of a cluster."""
        if self._settings.kind != "cluster":
            return [await self.locate("")]
        try:
            return [(str(node.host), int(node.port)) for node in (await self._topology()).get_primaries()]
        except (OSError, driver.RedisError, RedisClusterException) as error:
            raise connect_error(error, self._settings.where) from error

    async def refresh(self) -> None:
        """Ask for the topology again at the next look-up."""
        self._refreshed += 1
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.aclose()

    async def connect(self, host: Host) -> Connection:
        """Open a connection to the server, which ends when that is the master no more."""
        try:
            return await (self._connect(host) if self._watch is None else self._connect_to_master(host))
        except ConnectionFailed:
            await self.refresh()  # another server may serve the key by now: whoever tries again asks anew
            raise

    async def _connect_to_master(self, host: Host) -> Connection:
        attempt = _Attempt()
        self.tie(host, attempt)
        try:
            async with attempt.scope:
                connection = await self._connect(host)
        except TimeoutError as error:
            raise replaced(host) from error
        finally:
            attempt.is_open = False
        try:
            self.tie(host, connection)
        except ConnectionFailed:
            connection.abort()
            raise
        return connection

    async def _connect(self, host: Host) -> Connection:
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

    async def _find_master(self, watch: MasterWatch) -> Host:
        refreshed = self._refreshed
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                master = await asyncio.wrap_future(watch.ask())
        except TimeoutError as error:
            raise watch.not_found([]) from error
        self._answered = refreshed
        return master

    def tie(self, host: Host, tied: Tied) -> None:
        """Have something that uses the server end when that is the master no more."""
        if self._watch is not None and not self._watch.tie(host, tied):
            raise replaced(host)

    def tie_to_master(self, tied: Tied) -> None:
        """Have something end when another server is the master than the one that was located last."""
        if self._master is not None:
            self.tie(self._master, tied)

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
