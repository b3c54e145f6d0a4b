"""Finds the server that serves a key, blocking half: the twin of aio_locator.py for threads, method by method."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import redis as driver
from redis.cluster import ClusterNode
from redis.exceptions import RedisClusterException

from penstock.errors import ConnectionFailed
from penstock.redis.blocking import Connection
from penstock.redis.blocking_connect import connect, no_retry, untyped
from penstock.redis.master_watch import MasterWatch, Tied, replaced, watch_of
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import connect_error


class _Attempt:
    """A connection that is being opened. Nothing can end that from outside, so it is left to a thread of its own."""

    def __init__(self, settings: ConnectionSettings, host: Host) -> None:
        self._settings, self._host = settings, host
        self._made: Future[Connection] = Future()

    @property
    def is_open(self) -> bool:
        """Whether it is under way."""
        return not self._made.done()

    def result(self) -> Connection:
        """Return the connection."""
        threading.Thread(target=self._connect, name="penstock-connect", daemon=True).start()
        try:
            return self._made.result()
        except BaseException:
            self.abort_from_outside()
            raise

    def _connect(self) -> None:
        try:
            connection = connect(self._settings, self._host)
        except BaseException as error:  # raised where it is waited for
            with suppress(InvalidStateError):
                self._made.set_exception(error)
            return
        try:
            self._made.set_result(connection)
        except InvalidStateError:
            connection.close()  # nobody waits any more

    def abort_from_outside(self) -> None:
        """Wait for it no longer."""
        with suppress(InvalidStateError):
            self._made.set_exception(replaced(self._host))


class Locator:
    """Finds the server that serves a key, and opens connections to it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._cluster: driver.RedisCluster | None = None
        self._watch = watch_of(settings)
        self._refreshed = self._answered = 0  # where they differ, the Sentinels are asked again
        self._master: Host | None = None  # as it was located last
        self._seen: set[Host] = set()
        self._lock = threading.Lock()

    def locate(self, key: str) -> Host:
        """Return host and port of the server for the key."""
        try:
            if self._settings.kind == "cluster":
                node = untyped(self._topology()).get_node_from_key(key)
                if node is None:
                    raise ConnectionFailed(f"no node of the cluster at {self._settings.where} serves {key!r}")
                return node.host, int(node.port)
            if self._watch is not None:
                master = self._watch.master if self._refreshed == self._answered else None
                self._master = master or self._find_master(self._watch)
                return self._master
        except (OSError, driver.RedisError, RedisClusterException) as error:  # the latter is none of the former
            raise connect_error(error, self._settings.where) from error
        return self._settings.hosts[0] if self._settings.hosts else ("", 0)

    def masters(self) -> list[Host]:
        """Return every server that serves keys: one, or all masters of a cluster."""
        if self._settings.kind != "cluster":
            return [self.locate("")]
        try:
            return [(str(node.host), int(node.port)) for node in untyped(self._topology()).get_primaries()]
        except (OSError, driver.RedisError, RedisClusterException) as error:
            raise connect_error(error, self._settings.where) from error

    def refresh(self) -> None:
        """Ask for the topology again at the next look-up."""
        self._refreshed += 1
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.close()

    def connect(self, host: Host) -> Connection:
        """Open a connection to the server, which ends when that is the master no more."""
        try:
            return connect(self._settings, host) if self._watch is None else self._connect_to_master(host)
        except ConnectionFailed:
            self.refresh()  # another server may serve the key by now: whoever tries again asks anew
            raise

    def _connect_to_master(self, host: Host) -> Connection:
        attempt = _Attempt(self._settings, host)
        self.tie(host, attempt)
        connection = attempt.result()
        try:
            self.tie(host, connection)
        except ConnectionFailed:
            connection.abort()
            raise
        return connection

    def _topology(self) -> driver.RedisCluster:
        with self._lock:
            if self._cluster is None:
                options = {**self._settings.driver_options(), **self._settings.tls_options}
                # Also those that were seen before: the given ones may be gone by now.
                nodes = [untyped(ClusterNode)(host, port) for host, port in {*self._settings.hosts, *self._seen}]
                cluster = driver.RedisCluster(
                    startup_nodes=nodes,
                    ssl=self._settings.tls,
                    retry=no_retry(),
                    **options,
                )
                self._seen = {(str(node.host), int(node.port)) for node in untyped(cluster).get_nodes()}
                self._cluster = cluster
            return self._cluster

    def _find_master(self, watch: MasterWatch) -> Host:
        refreshed, lookup = self._refreshed, watch.ask()
        try:
            master = lookup.result(self._settings.connect_timeout_s)
        except TimeoutError as error:
            raise watch.not_found([]) from error
        finally:
            lookup.cancel()
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

    def make_driver(self, host: Host) -> driver.Redis:
        """Return a redis-py client to one of the servers, for pub/sub and administration; the caller closes it."""
        settings = self._settings
        options = settings.driver_options() | {"retry": no_retry(), "db": settings.db}
        if settings.path:
            return driver.Redis(unix_socket_path=settings.path, **options)
        return driver.Redis(host=host[0], port=host[1], ssl=settings.tls, **options, **settings.tls_options)

    def close(self) -> None:
        """Close what was opened to learn the topology."""
        self.refresh()
