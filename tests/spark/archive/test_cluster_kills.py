"""On a real cluster the driver, the executors and Redis are killed under way: archive and tables equal the input."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import verify
from tests.helpers.threads import eventually
from tests.spark.archive.lake import ARMED, GATES, OPEN, REACHED
from tests.spark.archive.streams import archived
from tests.spark.clusters import Standalone
from tests.spark.driver import PATIENCE_S, Driver
from tests.spark.end_to_end.test_faults import executors_of
from tests.spark.pipeline.conftest import add_orders

_DRIVER = """
import json, sys
from penstock.spark import session
from tests.spark.archive.lake import run
conf = json.loads(sys.argv[1])
spark = session("lake", conf.pop("master"), short=True, conf=conf)
run(spark, *sys.argv[2:4], is_killed=sys.argv[4] == "killed")
spark.stop()
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="executors are found in /proc")
def test_whatever_is_killed_under_way_the_archive_and_the_tables_equal_the_input(
    start_driver: Callable[..., Driver],
    standalone: Standalone,
    start_server: Callable[..., EmbeddedServer],
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    tmp_path: Path,
) -> None:
    server = start_server(directory=tmp_path / "redis", port=0, options={"appendfsync": "always"})
    conf = json.dumps({**standalone.conf, "master": standalone.url, "spark.log.level": "ERROR"})
    input_ = redis.Redis.from_url(server.url)

    def start(kind: str) -> Driver:
        return start_driver(_DRIVER, conf, str(tmp_path), server.url, kind, env={GATES: stream_server.unix_socket})

    def stopped_at_the_gates(first: int) -> None:
        """Waits until a task of each query is in the middle of a batch."""
        stream_redis.delete(REACHED)
        stream_redis.set(ARMED, 1)
        add_orders(input_, 150, first=first)
        eventually(lambda: stream_redis.scard(REACHED) == 2, PATIENCE_S)
        stream_redis.delete(ARMED)

    add_orders(input_, 250)
    driver = start("killed")  # files are in place, and not in the manifest; rows are written, and not in the table
    driver.wait_for_line("reached archive")
    driver.wait_for_line("reached pipeline")
    driver.kill()
    assert 0 < len(archived(tmp_path / "cold")) < 250

    driver = start("finished")
    driver.wait_for_line("running")
    stopped_at_the_gates(first=250)
    victims = executors_of(standalone)
    assert len(victims) == 2
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    stream_redis.lpush(OPEN, *["go"] * 10)
    driver.wait_for_line("Lost executor")

    stopped_at_the_gates(first=400)
    server.kill()
    stream_redis.lpush(OPEN, *["go"] * 10)
    driver.wait_for_line("reading streams failed and is tried again")
    server.start()
    add_orders(input_, 50, first=550)
    (tmp_path / "finish").touch()
    driver.wait_for_line("^finished$")

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
