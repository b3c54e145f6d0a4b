"""A real Hadoop, from Maven. Left out unless asked for: `make test` needs no such jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# The streams and drivers of the other tests of Spark.
from tests.spark.conftest import java, start_driver, stream_redis, stream_server
from tests.spark.driver import Process
from tests.yarn.hadoop import Hadoop

__all__ = ["java", "start_driver", "stream_redis", "stream_server"]
Penstock = Callable[..., Process]

if os.environ.get("PENSTOCK_YARN") != "1":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives them time: the first one fetches jars."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def hadoop(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """YARN with two nodes, and an HDFS where plain paths lie."""
    with Hadoop(tmp_path_factory.mktemp("hadoop"), java) as cluster:
        yield cluster


@pytest.fixture
def penstock(hadoop: Hadoop, tmp_path: Path) -> Iterator[Penstock]:
    """Runs a command as on a machine that is set up for the cluster: `penstock("pipeline", "run", ..., env=...)`."""
    with ExitStack() as running:

        def start(*words: object, env: dict[str, str] | None = None) -> Process:
            command = [sys.executable, "-m", "penstock", *map(str, words)]
            return running.enter_context(Process(command, tmp_path, {**hadoop.client, **(env or {})}))

        yield start
