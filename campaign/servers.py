"""Servers that only the campaign needs: one whose clock jumps, and a cluster with replicas."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import redis
from redis.cluster import ClusterNode
from redis.crc import key_slot

from penstock.redis.embedded import LOOPBACK, EmbeddedServer
from penstock.redis.probe import ask
from penstock.spark.runtime.java import JavaMissing, ensure_java
from penstock.testing import Cluster
from penstock.testing.servers import FLOOR, NEWEST
from tests.helpers.server_clock import MISSING, faketime_library, under_a_clock

_PATIENCE_S = 30.0


def missing_faketime() -> str:
    """Return what is missing for a clock that jumps, or nothing."""
    if faketime_library() is None:
        return MISSING
    return "" if FLOOR.is_installed else f"no {FLOOR.name}: {FLOOR.remedy}"


def missing_java() -> str:
    """Return what is missing for Spark, or nothing."""
    try:
        ensure_java()
    except JavaMissing as error:
        return str(error)
    return ""


@contextmanager
def server_with_a_clock(file: Path) -> Iterator[EmbeddedServer]:
    """A server that reads its clock from a file. Newer ones do not start under libfaketime."""
    with under_a_clock(file):
        server = FLOOR.server().start()
    with server:
        yield server


class ReplicatedCluster:
    """Three nodes with a share of the slots each, and a replica for each of them."""

    def __init__(self, options: dict[str, str] | None = None) -> None:
        options = {"repl-diskless-sync-delay": "0", "cluster-node-timeout": "2000", **(options or {})}
        self._primaries = Cluster(NEWEST, options=options)
        self._options = {**options, "cluster-enabled": "yes"}
        self._resources = contextlib.ExitStack()
        self.nodes: list[EmbeddedServer] = []
        self._frozen: EmbeddedServer | None = None

    def __enter__(self) -> Self:
        try:
            self._resources.enter_context(self._primaries)
            self.nodes = list(self._primaries.nodes)
            self.add_replicas(self._primaries.nodes)
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self._resources.close()

    def freeze(self, node: EmbeddedServer) -> None:
        """Have a node stand still: its port accepts connections, and nobody answers there."""
        self._frozen = node
        os.kill(node.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the frozen node go on; it takes itself for what it was until it hears from the others."""
        if self._frozen is not None:
            os.kill(self._frozen.pid, signal.SIGCONT)
            self._frozen = None

    def add_replica(self, primary: EmbeddedServer) -> None:
        """Start a replica of a node."""
        self.add_replicas([primary])

    def add_replicas(self, primaries: list[EmbeddedServer]) -> None:
        """Start a replica of each node, all at once: a node takes seconds to get to know the others."""
        added = [(self._resources.enter_context(NEWEST.server(port=0, options=self._options)), it) for it in primaries]
        for replica, primary in added:
            self.nodes.append(replica)
            ask(replica.unix_socket, "CLUSTER", "MEET", LOOPBACK, primary.port or 0)
        for replica, primary in added:
            node = ask(primary.unix_socket, "CLUSTER", "MYID")
            _until(lambda at=replica.unix_socket, node=node: ask(at, "CLUSTER", "REPLICATE", node) == b"OK")
        for replica, _ in added:
            _until(lambda at=replica.unix_socket: b"master_link_status:up" in (ask(at, "INFO", "replication") or b""))

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)

    def client(self) -> redis.RedisCluster:
        """Return a plain client of the whole cluster."""
        return redis.RedisCluster(startup_nodes=[ClusterNode(LOOPBACK, node.port) for node in self.nodes], protocol=2)

    def owner(self, key: str) -> EmbeddedServer | None:
        """Return the node that has a key, as most of them have it."""
        slot = key_slot(key.encode())
        named = Counter(server.port for node in self.nodes for server in self._owners(node, slot))
        if not named:
            return None
        ((port, _),) = named.most_common(1)
        return next(server for server in self.nodes if server.port == port)

    def _owners(self, node: EmbeddedServer, slot: int) -> Iterator[EmbeddedServer]:
        with contextlib.suppress(OSError):
            slots: Any = (
                ask(node.unix_socket, "CLUSTER", "SLOTS") if node.is_running and node is not self._frozen else []
            )
            for first, last, primary, *_ in slots:
                if first <= slot <= last:
                    yield from (found for found in self.nodes if found.port == primary[1] and found.is_running)

    def migrate(self, key: str, chance: random.Random) -> None:
        """Move the slot of a key to another primary, key by key, as an operator does."""
        slot = key_slot(key.encode())
        source = self.owner(key)
        primaries = [node for node in self.nodes if node.is_running and _is_primary(node)]
        if source is None or len(primaries) < 2:
            return
        target = chance.choice([node for node in primaries if node is not source])
        ids = {node: ask(node.unix_socket, "CLUSTER", "MYID") for node in (source, target)}
        ask(target.unix_socket, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])  # type: ignore[arg-type]
        ask(source.unix_socket, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])  # type: ignore[arg-type]
        while keys := ask(source.unix_socket, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            ask(source.unix_socket, "MIGRATE", LOOPBACK, target.port or 0, "", 0, 5_000, "KEYS", *keys, timeout_s=10.0)  # type: ignore[misc]
        for node in (target, source, *(other for other in primaries if other not in {source, target})):
            ask(node.unix_socket, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])  # type: ignore[arg-type]


def _is_primary(node: EmbeddedServer) -> bool:
    return b"role:master" in (ask(node.unix_socket, "INFO", "replication") or b"")  # type: ignore[operator]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster of the campaign did not form")
        time.sleep(0.05)
