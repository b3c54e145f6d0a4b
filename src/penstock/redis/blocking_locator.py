"""Finds the server that serves a key, blocking half: the twin of aio_locator.py for threads, method by method."""

from __future__ import annotations

import threading
from typing import Any

import redis as driver
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from penstock.errors import ConnectionFailed
from penstock.redis.blocking import Connection
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import connect_error, told_cause


def _untyped(made_by_driver: Any) -> Any:
    return made_by_driver  # redis-py's blocking half has no types for its constructors


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
        self._lock = threading.Lock()

    def locate(self, key: str) -> Host:
        """Return host and port of the server for the key."""
        try:
            if self._settings.kind == "cluster":
                node = _untyped(self._topology()).get_node_from_key(key)
                if node is None:
                    raise ConnectionFailed(f"no node of the cluster at {self._settings.where} serves {key!r}")
                return node.host, int(node.port)
            if self._settings.kind == "sentinel":
                return self._master or self._find_master()
        except (OSError, driver.RedisError, RedisClusterException) as error:  # the latter is none of the former
            raise connect_error(error, self._settings.where) from told_cause(error)
        return self._settings.hosts[0] if self._settings.hosts else ("", 0)

    def masters(self) -> list[Host]:
        """Return every server that serves keys: one, or all masters of a cluster."""
        if self._settings.kind != "cluster":
            return [self.locate("")]
        try:
            return [(str(node.host), int(node.port)) for node in _untyped(self._topology()).get_primaries()]
        except (OSError, driver.RedisError, RedisClusterException) as error:
            raise connect_error(error, self._settings.where) from told_cause(error)

    def refresh(self) -> None:
        """Ask for the topology again at the next look-up."""
        self._master = None
        self._refreshed += 1
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.close()

    def connect(self, host: Host) -> Connection:
        """Open a connection to the server."""
        settings = self._settings
        where = settings.where if settings.kind in ("single", "unix") else f"{host[0]}:{host[1]}"
        options = settings.driver_options() | {"retry": _no_retry(), "db": settings.db}
        # The handshake is part of connecting and gets the connect timeout, not that of commands.
        options["socket_timeout"] = settings.connect_timeout_s
        if settings.path:
            made: Any = _untyped(driver.UnixDomainSocketConnection)(path=settings.path, **options)
        elif settings.tls:
            made = _untyped(driver.SSLConnection)(host=host[0], port=host[1], **options, **settings.tls_options)
        else:
            made = _untyped(driver.Connection)(host=host[0], port=host[1], **options)
        try:
            made.connect()
        except (OSError, TimeoutError, driver.RedisError) as error:
            made.disconnect()
            raise connect_error(error, where) from error
        connection = Connection(settings.socket_timeout_s, where)
        # Taken from redis-py before it can close it.
        connected, made._sock = made._sock, None  # noqa: SLF001
        connection.adopt(connected)
        return connection

    def _topology(self) -> driver.RedisCluster:
        with self._lock:
            if self._cluster is None:
                options = {**self._settings.driver_options(), **self._settings.tls_options}
                # Also those that were seen before: the given ones may be gone by now.
                nodes = [_untyped(ClusterNode)(host, port) for host, port in {*self._settings.hosts, *self._seen}]
                cluster = driver.RedisCluster(
                    startup_nodes=nodes,
                    ssl=self._settings.tls,
                    retry=_no_retry(),
                    **options,
                )
                self._seen = {(str(node.host), int(node.port)) for node in _untyped(cluster).get_nodes()}
                self._cluster = cluster
            return self._cluster

    def _find_master(self) -> Host:
        with self._lock:
            if (master := self._master) is not None:
                return master
            refreshed = self._refreshed
            found = self._ask_sentinels()
            if refreshed == self._refreshed:  # else somebody has met another master since: the next one asks again
                self._master = found
            return found

    def _ask_sentinels(self) -> Host:
        # Made anew for one question: as in the twin.
        options = self._settings.sentinel_options() | {"retry": _no_retry()}
        sentinel = _untyped(Sentinel)(list(self._sentinels), sentinel_kwargs=options)
        clients = dict(zip(sentinel.sentinels, self._sentinels, strict=True))
        try:
            host, port = sentinel.discover_master(str(self._settings.service_name))
            self._sentinels = tuple(clients[client] for client in sentinel.sentinels)
        finally:
            for client in clients:
                client.close()
        return str(host), int(port)

    def make_driver(self, host: Host) -> driver.Redis:
        """Return a redis-py client to one of the servers, for pub/sub and administration; the caller closes it."""
        settings = self._settings
        options = settings.driver_options() | {"retry": _no_retry(), "db": settings.db}
        if settings.path:
            return driver.Redis(unix_socket_path=settings.path, **options)
        return driver.Redis(host=host[0], port=host[1], ssl=settings.tls, **options, **settings.tls_options)

    def close(self) -> None:
        """Close what was opened to learn the topology."""
        self.refresh()
