"""Executors whose disks are their own: what they write is not there for the driver, which says so and commits nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive.table import load_state
from tests.spark.archive.streams import archived
from tests.spark.archive.test_cluster_kills import parquet_numbers
from tests.spark.clusters import Standalone, spark_home
from tests.spark.driver import Driver, Process
from tests.spark.pipeline.conftest import add_orders, iceberg_rows
from tests.spark.reprocess.test_reprocess import dead_letter
from tests.yarn.own_disks import catalogue_of

_DRIVER = """
import sys
from tests.spark.reprocess.test_reprocess import dead_letter
from tests.yarn.own_disks import run
run(print, *sys.argv[1:])
"""
_MOUNT = 'mount -t tmpfs own "$0" && exec "$@"'


class OwnDisk(Standalone):
    """A cluster of one worker that has a disk of its own at a place, and of everybody else's nothing there."""

    def __init__(self, place: Path, hidden: Path, way: list[str]) -> None:
        super().__init__(place, workers=1)
        self._hidden, self._way = hidden, way

    def _started(self, command: list[str]) -> list[str]:
        if not any(word.endswith("Worker") for word in command):
            return command
        return [*self._way, "sh", "-c", _MOUNT, str(self._hidden), *command]


@pytest.fixture(scope="module")
def way() -> list[str]:
    """How a process gets mounts of its own: as root, or where users may have name spaces of their own."""
    for words in (["unshare", "-m"], ["unshare", "-Urm"]):
        done = subprocess.run([*words, "mount", "-t", "tmpfs", "own", "/mnt"], capture_output=True, check=False)
        if shutil.which("unshare") and done.returncode == 0:
            return words
    if os.environ.get("CI") == "true":
        pytest.fail("no process can have mounts of its own here")
    pytest.skip("no process can have mounts of its own here: run this as root on Linux")


@pytest.fixture
def cluster(java: Path, way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnDisk]:
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    (tmp_path / "own").mkdir()
    (tmp_path / "cluster").mkdir()
    with OwnDisk(tmp_path / "cluster", tmp_path / "own", way) as made:
        yield made


def test_what_is_written_elsewhere_is_told_and_not_committed(
    cluster: OwnDisk,
    start_driver: Callable[..., Driver],
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    tmp_path: Path,
) -> None:
    add_orders(stream_redis, 20)
    dead_letter(stream_redis, 3, "fatal", tmp_path)
    conf = json.dumps({**cluster.conf, "spark.task.maxFailures": "1", "spark.log.level": "OFF"})
    said = told(start_driver(_DRIVER, cluster.url, conf, str(tmp_path), stream_server.url))
    share = "use a location that the driver and all executors share, such as hdfs:// or s3a://"
    for name in ("parquet", "delta", "iceberg", "staging"):
        assert "FilesMissing: " in said[name], said
        assert said[name].endswith(f"{share}. Fix the cause and run it again: it continues with the same batch")
    assert "use a root that the driver and all" in said["results"]
    assert "the driver and all executors must share the file system of the archive. Nothing was" in said["archive"]
    assert "use a folder for --results that the driver and all executors share" in said["again"]
    assert stream_redis.xlen("orders_dlq") == 1
    assert not (tmp_path / "journal").exists(), "no handler was called"
    assert not list((tmp_path / "own").glob("**/batch=*")), "no batch is shown"
    assert not load_state(tmp_path / "own" / "cold").ranges
    assert said["state"] == "done"  # its state is in reach of the executor that has written it, and of no other

    # The cause is mended, and there is more to do: the same pipelines, where all disks are one.
    add_orders(stream_redis, 25)  # twenty of them again
    said = told(start_driver(_DRIVER, "local[2]", "{}", str(tmp_path), stream_server.url))
    state = said.pop("state")
    assert state.startswith("pipeline 'state' failed: [CANNOT_LOAD_STATE_STORE"), state
    assert parquet_numbers(tmp_path / "once") == list(range(20)), "what was dropped before is not let in again"
    assert {*said.values()} == {"done"}, said
    both = sorted([*range(20), *range(25)])
    for table in ("own/table", "staged", "copy"):
        assert parquet_numbers(tmp_path / table) == both
    assert sorted(DeltaTable(str(tmp_path / "own" / "delta")).to_pyarrow_table()["n"].to_pylist()) == both
    assert iceberg_rows(catalogue_of(tmp_path), "shop.orders", "n") == both
    assert len(list((tmp_path / "own" / "results" / ".ids").glob("*/*"))) == 25
    assert stream_redis.xlen("orders_dlq") == 0
    assert len(archived(tmp_path / "own" / "cold")) == 45


def told(driver: Process) -> dict[str, str]:
    """Returns what became of each pipeline, and of the archive."""
    driver.wait_for_line("^over$")
    return {name: text for line in driver.lines() if line.startswith("{") for name, text in json.loads(line).items()}
