"""Spark for the tests: one session per test process, and real clusters and driver processes for the few that need them.

Whatever uses one of these fixtures starts or needs Java, and is kept in one of three processes of pytest-xdist.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from penstock.errors import PenstockError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.runtime.fast_start import make_class_archive
from penstock.spark.runtime.java import ensure_java
from penstock.spark.runtime.versions import require_pyspark
from penstock.spark.sessions import session
from tests.conftest import ServerPark, with_user
from tests.helpers.missing import usual_server
from tests.helpers.threads import eventually
from tests.spark.driver import PATIENCE_S, PYTHONPATH, Driver
from tests.spark.limits import AVAILABLE_NOW, HAS_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.clusters import ConnectServer, Standalone

_TIMEOUT_S = 600  # two cores start several Javas for some of these tests

_LONGEST_PLACE = 64  # of sockets, whose own names have 43 letters: a path of more than 107 is none

# What Spark 4.1 has not (docs/explanation/spark.md): where a batch begins when its end is asked for, and so limits of a
# batch, lag in the progress of a query, archive runs. Tests of these are marked; these files are about nothing else.
collect_ignore = [] if HAS_LIMITS else ["source/test_hybrid_log.py", "source/test_stream_reader.py"]
_NEEDS_LIMITS = pytest.mark.skipif(not HAS_LIMITS, reason="Spark 4.1 does not tell a source where a batch begins")
# It leaves sockets to the garbage collector.
_SPARK_4_1 = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps tests together that share a session, or start their own Java, in three processes that end at about one time."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("needs_limits"):
            item.add_marker(_NEEDS_LIMITS)
        if "java" in fixtures:
            if not HAS_LIMITS:
                item.add_marker(_SPARK_4_1)
            item.add_marker("java")
            item.add_marker(pytest.mark.xdist_group(_group(item.path, fixtures)))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


def _group(path: Path, fixtures: Sequence[str]) -> str:
    if "spark_of_session" not in fixtures:
        return "spark-processes"
    return "spark-pipelines" if path.parent.name == "pipeline" else "spark"


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JAVA_HOME of this process.

    Many a Java is killed here, and cannot delete its files any more: they lie in the folder of pytest.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    place = str(tmp_path_factory.mktemp("java"))
    if len(place) <= _LONGEST_PLACE:
        os.environ["SPARK_SUBMIT_OPTS"] = f"-Djava.io.tmpdir={place}"
    require_pyspark()
    home = ensure_java()
    _prepare_fast_start()
    return home


def _prepare_fast_start() -> None:
    """Makes the class archive, once for all processes: some forty Javas start from it, and each saves seconds.

    It goes with the environment that it was made for. A Java that makes none starts without it.
    """
    place = Path(sys.prefix) / "cache"
    place.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(place)
    with (place / "lock").open("w") as lock, suppress(PenstockError):
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_class_archive()


@pytest.fixture(scope="session")
def spark_of_session(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    place = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.memory": "1g",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        **AVAILABLE_NOW,
    }
    # A task may fail and is tried again, up to four times, as on a cluster.
    spark = session("penstock tests", "local[2,4]", short=True, conf=conf)
    yield spark
    spark.stop()
    _end_java()


def _running_tasks(spark: SparkSession) -> int:
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(number).activeTasks() for number in range(executors.size()))


def _end_java() -> None:
    """Ends the Java that PySpark leaves running until its process ends, and its open files with it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def spark(spark_of_session: SparkSession) -> Iterator[SparkSession]:
    """The shared session, with `redis_streams`; queries that a test leaves running are stopped after it.

    A task outlives its query by a moment when another task of the query fails: the next test would find its rows.
    """
    yield spark_of_session
    for query in spark_of_session.streams.active:
        query.stop()
    eventually(lambda: _running_tasks(spark_of_session) == 0, PATIENCE_S)
    spark_of_session.catalog.clearCache()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def stream_server(server_park: ServerPark, request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """The usual server, empty; Spark reaches it at `stream_server.url`."""
    with with_user(server_park.get(usual_server()), request.node) as server:
        yield server


@pytest.fixture
def stream_redis(stream_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of `stream_server`: bytes in, bytes out."""
    with redis.Redis(unix_socket_path=stream_server.unix_socket, protocol=2) as client:
        yield client


@pytest.fixture
def start_driver(java: Path, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts a driver process, `start_driver(script, *arguments, env=...)`; it is killed with the test."""
    with ExitStack() as drivers:

        def start(script: str, *arguments: str, env: dict[str, str] | None = None) -> Driver:
            return drivers.enter_context(Driver(script, tmp_path, *arguments, env=env))

        yield start


@pytest.fixture(scope="session")
def standalone_of_session(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    from tests.spark.clusters import Standalone

    with Standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def standalone(standalone_of_session: Standalone, monkeypatch: pytest.MonkeyPatch) -> Standalone:
    """A real cluster of a master and two workers; use it from `start_driver`, and kill no worker of it."""
    from tests.spark.clusters import spark_home

    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    return standalone_of_session


@pytest.fixture(scope="session")
def connect_server(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A real Spark Connect server; its executors have this Python, this Penstock and the handlers of the tests."""
    from tests.spark.clusters import ConnectServer

    with ConnectServer(tmp_path_factory.mktemp("connect"), env={"PYTHONPATH": PYTHONPATH}) as server:
        yield server


@pytest.fixture
def connect(connect_server: ConnectServer) -> Iterator[SparkSession]:
    """A client of `connect_server`. Functions come from `pyspark.sql.connect.functions`, or write SQL."""
    # Not through the common builder, which allows one kind of session in a process.
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    client = ConnectSession.builder.remote(connect_server.url).create()
    yield client
    client.stop()
