"""On a real cluster the driver, the executors and Redis are killed under way: archive and tables equal the input."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from deltalake import DeltaTable

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import verify
from tests.helpers.threads import eventually
from tests.spark.archive.lake import ARMED, DRIVER, GATES, OPEN, REACHED, finish
from tests.spark.archive.streams import archived
from tests.spark.clusters import Standalone
from tests.spark.driver import PATIENCE_S, Driver
from tests.spark.end_to_end.test_faults import executors_of
from tests.spark.pipeline.conftest import add_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVER = """
import json, sys
from penstock.spark import session
from tests.spark.archive.lake import run
conf = json.loads(sys.argv[1])
run(session("lake", conf.pop("master"), short=True, conf=conf), *sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="executors are found in /proc")
@pytest.mark.needs_limits
def test_whatever_is_killed_under_way_the_archive_and_the_tables_equal_the_input(
    spark: SparkSession,
    start_driver: Callable[..., Driver],
    standalone: Standalone,
    start_server: Callable[..., EmbeddedServer],
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(GATES, stream_server.unix_socket)
    server = start_server(directory=tmp_path / "redis", port=0, options={"appendfsync": "always"})
    conf = json.dumps({**standalone.conf, "master": standalone.url, "spark.log.level": "ERROR"})
    input_ = redis.Redis.from_url(server.url)

    def under_way(gate: str, first: int) -> None:
        """Adds orders, and waits until both queries are in the middle of a batch of them."""
        stream_redis.delete(REACHED)
        stream_redis.set(gate, 1)
        add_orders(input_, 150, first=first)
        eventually(lambda: stream_redis.scard(REACHED) == 2, PATIENCE_S)
        stream_redis.delete(gate)

    add_orders(input_, 100)
    driver = start_driver(_DRIVER, conf, str(tmp_path), server.url)
    under_way(ARMED, first=100)
    victims = executors_of(standalone)
    assert len(victims) == 2
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    stream_redis.lpush(OPEN, *["go"] * 10)
    driver.wait_for_line("Lost executor")

    under_way(ARMED, first=250)
    server.kill()
    stream_redis.delete(OPEN)
    stream_redis.lpush(OPEN, *["go"] * 10)
    driver.wait_for_line("reading streams failed; retrying")
    server.start()

    under_way(DRIVER, first=400)  # files are in place, and not in the manifest; rows are written, and in no table
    driver.kill()
    assert 0 < len(archived(tmp_path / "cold")) < 550
    add_orders(input_, 50, first=550)
    finish(spark, str(tmp_path), server.url)

    entries = [(i.decode(), {k.decode(): v for k, v in f.items()}) for i, f in input_.xrange("orders")]
    assert sorted(json.loads(fields["data"])["n"] for _, fields in entries) == list(range(600))
    assert archived(tmp_path / "cold") == entries
    assert verify(tmp_path / "cold", rows=True).is_sound
    delta = DeltaTable(str(tmp_path / "delta"))
    assert sorted(delta.to_pyarrow_table()["n"].to_pylist()) == list(range(600))
    assert parquet_numbers(tmp_path / "table") == list(range(600))
    input_.close()


def parquet_numbers(place: Path) -> list[int]:
    """Returns what the shown files of the table hold."""
    import pyarrow.parquet as pq

    files = [file for file in place.glob("batch=*/*.parquet") if not file.name.startswith(("_", "."))]
    return sorted(n for file in files for n in pq.ParquetFile(file).read(["n"])["n"].to_pylist())
