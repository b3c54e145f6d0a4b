"""Servers for the tests: one of each kind per test process, started when first wanted, emptied before each test."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import SocketAddress, ask
from penstock.testing import TEST_SERVERS, Cluster, FaultProxy, ServerKind, ServerMissing
from penstock.testing.servers import DEFAULT
from tests.helpers.result_stores import postgres, postgres_of_session, s3_of_session, s3_server  # noqa: F401  fixtures

# Examples share the machine with servers and other test processes: their speed says nothing.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")

# What a test may have changed on a shared server, and the value that the next one expects.
_SETTINGS = {"maxmemory": "0", "notify-keyspace-events": "", "min-replicas-to-write": "0", "lua-time-limit": "5000"}

# The tests start Python after Python: where nothing compiled may lie beside its source, each would compile all anew, the
# processes of pytest-xdist among them. This is done by the first process, and inherited by all others.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "pycache"))
    sys.dont_write_bytecode = False

# A test run that was started in the background may have SIGINT ignored, and every process it starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that uses `server` once on each server, or on those that it names in `@pytest.mark.servers`."""
    if "server_kind" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("servers")
    if marker is not None:
        kinds = [kind for kind in TEST_SERVERS if any(word in kind.name for word in marker.args)]
        assert kinds, f"no server is called like {marker.args}"
    else:
        kinds = [DEFAULT] if "default_server" in metafunc.fixturenames else list(TEST_SERVERS)
    metafunc.parametrize("server_kind", kinds, ids=[kind.name for kind in kinds])


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests that use the cluster in one process: three nodes are enough for this machine.

    Those of Spark begin first, for they take the longest; then tests that compute and tests that wait are mixed.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "cluster" in fixtures and "spark_of_session" not in fixtures:  # a second session costs more than a cluster
            item.add_marker(pytest.mark.xdist_group("cluster"))
    items.sort(key=_turn)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes the group off the name that xdist gave to the test, by which --last-failed would not find it.

    Only where all reports come together: a worker needs the name with the group.
    """
    name, at, group = report.nodeid.rpartition("@")
    if hasattr(report, "node") and at and group in ("cluster", "spark", "spark-cluster", "spark-processes"):
        report.nodeid = name


def _turn(item: pytest.Item) -> tuple[bool, bytes]:
    is_spark = any("spark" in str(mark.args) for mark in item.iter_markers("xdist_group"))
    return not is_spark, hashlib.sha256(str(item.path.relative_to(item.config.rootpath)).encode()).digest()


def or_skip(error: ServerMissing) -> NoReturn:
    """Fails in continuous integration and skips elsewhere: a laptop need not have every server."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(error))
    pytest.skip(str(error))


def hang_up(address: SocketAddress) -> None:
    """Has a server close all connections: the last command of a process that a test has killed may still lie in one.

    Whoever connected earlier is accepted earlier, so that nobody is missed.
    """
    for kind in ("normal", "pubsub"):
        ask(address, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", timeout_s=30.0)


class ServerPark:
    """The shared servers of one test process."""

    def __init__(self) -> None:
        self._servers: dict[str, EmbeddedServer] = {}

    def get(self, kind: ServerKind) -> EmbeddedServer:
        """Returns the running, empty server of this kind."""
        if kind.name not in self._servers:
            self._servers[kind.name] = kind.server(port=0)
        server = self._servers[kind.name].start()
        hang_up(server.unix_socket)
        for command in (["FLUSHALL"], ["SCRIPT", "FLUSH"], *(["CONFIG", "SET", *pair] for pair in _SETTINGS.items())):
            ask(server.unix_socket, *command, timeout_s=30.0)
        return server

    def close(self) -> None:
        """Stops all servers."""
        for server in self._servers.values():
            server.stop()


@pytest.fixture(scope="session")
def server_park() -> Iterator[ServerPark]:
    park = ServerPark()
    yield park
    park.close()


@pytest.fixture
def server(server_kind: ServerKind, server_park: ServerPark) -> EmbeddedServer:
    """An empty server, shared with other tests: one after the other of each kind. Do not stop it or set passwords."""
    try:
        return server_park.get(server_kind)
    except ServerMissing as error:
        or_skip(error)


@pytest.fixture
def default_server(server: EmbeddedServer) -> EmbeddedServer:
    """The server of the most common version only: for tests to which the version makes no difference."""
    return server


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    """The URL of `server` (of `default_server`, in a test that uses it)."""
    return server.unix_url


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of `server`, to look at the truth: bytes in, bytes out."""
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        yield client


@pytest.fixture
def fault_proxy(server: EmbeddedServer) -> Iterator[FaultProxy]:
    """A proxy in front of `server`; faults are switched on by the test."""
    with FaultProxy(server.unix_socket) as proxy:
        yield proxy


@pytest.fixture
def start_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts a server of the test's own, to be killed, paused or locked: `start_server(kind=..., **settings)`."""
    with ExitStack() as servers:

        def start(kind: ServerKind = DEFAULT, **settings: object) -> EmbeddedServer:
            try:
                return servers.enter_context(kind.server(**settings))
            except ServerMissing as error:
                or_skip(error)

        yield start


@pytest.fixture(scope="session")
def cluster_of_session() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.start()
    except ServerMissing as error:
        or_skip(error)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(cluster_of_session: Cluster) -> Cluster:
    """An empty cluster of three nodes."""
    for address in cluster_of_session.addresses:
        hang_up(address)
    cluster_of_session.flush()
    return cluster_of_session
