"""Which tests run, on which servers and in which order; and the servers, one of each kind per test process.

tests/README.md explains the options.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tomllib
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import hypothesis
import pytest
import redis

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import SocketAddress, ask
from penstock.redis.server_binary import find_server_binary
from penstock.testing import TEST_SERVERS, Cluster, FaultProxy, ServerKind, ServerMissing
from tests.helpers.missing import rotate_usual_server, skip_where_missing, usual_server
from tests.helpers.result_stores import postgres, postgres_of_session, s3_of_session, s3_server  # noqa: F401  fixtures
from tests.helpers.users import SharedServer, UserProxy, user_of

# Examples share the machine with servers and other test processes: their speed says nothing. New ones are tried by whoever
# works on the code; a build tries the same ones each time, so that it fails for what was changed.
hypothesis.settings.register_profile("penstock", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("penstock")

# What a test may have changed on a shared server, and the value that the next one expects.
_SETTINGS = {"maxmemory": "0", "notify-keyspace-events": "", "min-replicas-to-write": "0", "lua-time-limit": "5000"}

# The tests start Python after Python: where nothing compiled may lie beside its source, each would compile all anew, the
# processes of pytest-xdist among them. This is done by the first process, and inherited by all others.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "pycache"))
    sys.dont_write_bytecode = False

# Started in the background, or by nohup, a test run ignores these, and every process that it starts would inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


QUARANTINE = Path(__file__).with_name("quarantine.toml")
_SYNC = Path(__file__).with_name("sync")
_SLOW_TURNS = 6  # a slow test runs in one rotation of so many
_TURNS = 3  # so does a generated test, or one that is marked `rotates`
_GROUPS = {"cluster": "cluster", "s3": "s3_server"}  # tests with this fixture run in one process
_SHARED = {"server", "stream_server"}  # the servers that --acl makes users on


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--matrix",
        choices=("one", "usual", "all"),
        default="usual",
        help="one: each test on one server; usual: suites marked every_server on all; all: everything on all",
    )
    group.addoption(
        "--rotation", type=int, metavar="N", help="where one server or a share of the tests is enough: which one"
    )
    group.addoption(
        "--share", type=int, default=1, metavar="N", help="run one test in N, and of the slow ones one in six times N"
    )
    group.addoption("--order-seed", type=int, metavar="N", help="run files, and the tests of a file, in random order")
    group.addoption(
        "--acl",
        action="store_true",
        help="log clients in with the rights that `penstock acl` prints; only tests of a role",
    )


def pytest_configure(config: pytest.Config) -> None:
    rotate_usual_server(config.getoption("--rotation") or 0)


def pytest_report_header(config: pytest.Config) -> str:
    chosen = (
        f"{name} {config.getoption(name)}" for name in ("--matrix", "--rotation", "--share", "--order-seed", "--acl")
    )
    return f"penstock: {', '.join(chosen)}; {len(quarantined())} tests in quarantine"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chooses the servers that a test with the fixture `server` runs on."""
    if "server_kind" in metafunc.fixturenames:
        kinds = _servers_of(metafunc)
        metafunc.parametrize("server_kind", kinds, ids=[kind.name for kind in kinds])


def _servers_of(metafunc: pytest.Metafunc) -> list[ServerKind]:
    if "default_server" in metafunc.fixturenames:
        return [usual_server()]
    marker = metafunc.definition.get_closest_marker("servers")
    words = marker.args if marker else ("",)
    kinds = [kind for kind in TEST_SERVERS if any(word in kind.name for word in words)]
    assert kinds, f"no server is called like {words}"
    matrix = metafunc.config.getoption("--matrix")
    # The sync half has the same scripts as the async half, from which it is generated.
    is_script_suite = metafunc.definition.get_closest_marker(
        "every_server"
    ) and not metafunc.definition.path.is_relative_to(_SYNC)
    if matrix == "all" or (matrix == "usual" and is_script_suite):
        return kinds
    # A missing server is a skip where every server is asked for. Where one is enough, the others take its turn.
    kinds = [kind for kind in kinds if kind.is_installed] or kinds
    turn = turn_of(metafunc.definition)
    if metafunc.definition.get_closest_marker("slow"):
        turn //= _SLOW_TURNS  # next time on another server
    return [kinds[turn % len(kinds)]]


def turn_of(item: pytest.Item) -> int:
    """Returns a number that grows by one from rotation to rotation, and differs from test to test."""
    name = item.nodeid
    # A test is the same on whichever server, and in whichever half, its turn has put it.
    for word in (*(kind.name for kind in TEST_SERVERS), "async", "sync"):
        name = name.replace(word, "")
    return zlib.crc32(name.encode()) + (item.config.getoption("--rotation") or 0)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests that use the cluster, or the S3 server, in one process each: one of them is enough for this machine.

    Those of Spark begin first, for they take the longest; then tests that compute and tests that wait are mixed.
    """
    unsteady = quarantined()
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "spark_of_session" not in fixtures:  # a second session costs more than a second cluster
            for group, fixture in _GROUPS.items():
                if fixture in fixtures:
                    item.add_marker(pytest.mark.xdist_group(group))
        if reason := unsteady.get(item.nodeid.partition("[")[0]):
            item.add_marker(pytest.mark.xfail(reason=f"quarantined: {reason}", strict=False))
    config.hook.pytest_deselected(items=[item for item in items if not _is_due(item)])
    items[:] = sorted(filter(_is_due, items), key=_place)


def quarantined() -> dict[str, str]:
    """Returns the tests whose failure does not fail the run, with the reason why."""
    found: dict[str, str] = tomllib.loads(QUARANTINE.read_text())
    return found


def _is_due(item: pytest.Item) -> bool:
    """Tells whether a test runs now: slow ones do when they are asked for, or when it is their turn."""
    option = item.config.getoption
    if option("--acl") and not (user_of(item) and _SHARED & {*getattr(item, "fixturenames", ())}):
        return False
    is_asked_for = option("-k") or any("::" in word or "sync" in word for word in item.config.args)
    is_slow, every = item.get_closest_marker("slow") is not None, option("--share")
    rotates = item.get_closest_marker("rotates") or item.path.is_relative_to(_SYNC)
    if option("--matrix") != "all" and not is_asked_for:
        if is_slow and option("--rotation") is None:
            return "slow" in option("-m")
        # The async source of a generated test runs in each rotation.
        every *= _SLOW_TURNS if is_slow else _TURNS if rotates else 1
    return turn_of(item) % every == 0


def _place(item: pytest.Item) -> tuple[bool, bytes, bytes]:
    seed = item.config.getoption("--order-seed")

    def shuffled(name: str) -> bytes:
        return hashlib.sha256(f"{seed or ''}{name}".encode()).digest()

    is_spark = any("spark" in str(mark.args) for mark in item.iter_markers("xdist_group"))
    path = str(item.path.relative_to(item.config.rootpath))
    return not is_spark, shuffled(path), b"" if seed is None else shuffled(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes the group off the name that xdist gave to the test, by which --last-failed would not find it.

    Only where all reports come together: a worker needs the name with the group.
    """
    name, at, group = report.nodeid.rpartition("@")
    if hasattr(report, "node") and at and group in (*_GROUPS, "spark", "spark-pipelines", "spark-processes"):
        report.nodeid = name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with skip_where_missing():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with skip_where_missing():
        return (yield)


def hang_up(address: SocketAddress) -> None:
    """Has a server close all connections: the last command of a process that a test has killed may still lie in one.

    Whoever connected earlier is accepted earlier, so that nobody is missed.
    """
    for kind in ("normal", "pubsub"):
        ask(address, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", timeout_s=30.0)


def end_pause_and_users(address: SocketAddress) -> None:
    """Removes what a failed test may have left: a pause would hold up the next command that writes."""
    ask(address, "CLIENT", "UNPAUSE", timeout_s=30.0)
    users: list[bytes] = ask(address, "ACL", "USERS", timeout_s=30.0)  # type: ignore[assignment]
    if left := [user for user in users if user != b"default"]:
        ask(address, "ACL", "DELUSER", *left, timeout_s=30.0)


class ServerPark:
    """The shared servers of one test process."""

    def __init__(self) -> None:
        self._servers: dict[str, SharedServer] = {}

    def get(self, kind: ServerKind) -> SharedServer:
        """Returns the running, empty server of this kind."""
        if kind.name not in self._servers:
            self._servers[kind.name] = SharedServer(kind.binary(), port=0)
        server = self._servers[kind.name].start()
        hang_up(server.unix_socket)
        end_pause_and_users(server.unix_socket)
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


@contextmanager
def with_user(server: SharedServer, item: pytest.Item) -> Iterator[SharedServer]:
    """With --acl, has URLs of the server log in as the user of the test, and checks that it needed no more rights."""
    user = user_of(item) if item.config.getoption("--acl") else None
    if user is None:
        yield server
        return
    server.log_in(user)
    try:
        yield server
        assert server.refused == [], f"the role {user.role} lacks rights"
    finally:
        server.log_out()


@pytest.fixture
def server(
    server_kind: ServerKind, server_park: ServerPark, request: pytest.FixtureRequest
) -> Iterator[EmbeddedServer]:
    """An empty server, shared with other tests: one after the other of each kind. Do not stop it or set passwords."""
    with with_user(server_park.get(server_kind), request.node) as server:
        yield server


@pytest.fixture
def default_server(server: EmbeddedServer) -> EmbeddedServer:
    """The usual server, and never another: for tests to which the version makes no difference."""
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
def fault_proxy(server: SharedServer) -> Iterator[FaultProxy]:
    """A proxy in front of `server`; faults are switched on by the test."""
    with UserProxy(server) as proxy:
        yield proxy


@pytest.fixture
def start_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts a server of the test's own, to be killed, paused or locked: `start_server(kind=..., **settings)`."""
    with ExitStack() as servers:

        def start(kind: ServerKind | None = None, **settings: object) -> EmbeddedServer:
            return servers.enter_context((kind or usual_server()).server(**settings))

        yield start


@pytest.fixture
def server_program() -> Path:
    """What `embedded://` starts, for tests that run a command or a page which starts a server by itself."""
    try:
        return find_server_binary()
    except ConfigurationError as error:
        raise ServerMissing(str(error)) from error


@pytest.fixture(scope="session")
def cluster_of_session() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_session: Cluster) -> Cluster:
    """An empty cluster of three nodes."""
    for address in cluster_of_session.addresses:
        hang_up(address)
        end_pause_and_users(address)
    cluster_of_session.flush()
    return cluster_of_session
