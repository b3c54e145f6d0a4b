"""A pipeline on YARN: its handler lies beside its file, its table in HDFS, and executors and driver are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import redis
from deltalake import DeltaTable

from penstock.redis.embedded import EmbeddedServer
from tests.helpers.threads import eventually
from tests.spark.archive.test_cluster_kills import parquet_numbers
from tests.spark.bare_python import bare_python
from tests.spark.driver import PATIENCE_S
from tests.spark.pipeline.conftest import add_orders, dead_letters
from tests.yarn.conftest import Penstock
from tests.yarn.hadoop import Hadoop

# Plain paths: they lie in HDFS here, and on the disk where no other file system is the default.
FILE = """
name = "orders"
checkpoint = "/lake/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "n bigint"
max_rows_per_batch = 40
[[step]]
handler = "shop:score"
output = "score double"
[[step]]
sql = "SELECT n, score FROM input"
[[sink]]
kind = "parquet"
path = "/lake/table"
[[sink]]
kind = "delta"
path = "/lake/delta"
[[sink]]
kind = "redis_streams"
stream = "scores"
options = {{ payload = "json" }}
"""
# One call waits at the gate, if it is armed.
SHOP = """
import redis
from penstock.errors import FatalError

async def score(messages):
    if any(message.data["n"] % 10 == 7 for message in messages):
        raise FatalError("no price")
    with redis.Redis.from_url("{url}", socket_timeout=None) as client:
        if client.getdel("gate:armed"):
            client.rpush("gate:reached", 1)
            client.blpop("gate:open", timeout=120)
    return {{message.id: {{"score": message.data["n"] / 2}} for message in messages}}
"""
NO_PYTHON = "The executors cannot start the Python /nowhere/python .*: set PYSPARK_PYTHON to one that has the same path"
PRICED = [n for n in range(180) if n % 10 != 7]


def test_a_pipeline_loses_and_doubles_nothing_when_executors_and_the_driver_are_killed(
    hadoop: Hadoop, penstock: Penstock, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(FILE.format(url=stream_server.url))
    (tmp_path / "shop.py").write_text(SHOP.format(url=stream_server.url))

    stream_redis.set("gate:armed", 1)
    add_orders(stream_redis, 60)
    driver = penstock("pipeline", "run", file, "--continuous", "--master", "yarn")
    eventually(lambda: stream_redis.lpop("gate:reached"), PATIENCE_S)  # the handler is in the middle of a batch
    victims = hadoop.executors()
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    stream_redis.rpush("gate:open", 1)
    driver.wait_for_line("batch 1: 20 rows")
    assert not {*victims} & {*hadoop.executors()}

    stream_redis.set("gate:armed", 1)
    add_orders(stream_redis, 60, first=60)
    eventually(lambda: stream_redis.lpop("gate:reached"), PATIENCE_S)
    driver.kill()
    stream_redis.rpush("gate:open", 1)  # the tasks that it has left behind go on, as long as YARN lets them
    add_orders(stream_redis, 60, first=120)
    # Started again with executors that have no Penstock: it comes with the job.
    driver = penstock("pipeline", "run", file, "--master", "yarn", env={"PYSPARK_PYTHON": str(bare_python(tmp_path))})
    driver.wait_for_line(r"batch \d: \d+ rows")
    driver.wait_for_line(r"orders: done after \d batches, 120 rows")
    driver.end()

    assert sorted(json.loads(fields[b"data"])["n"] for _, fields in stream_redis.xrange("scores")) == PRICED
    assert sorted(json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)) == list(range(7, 180, 10))
    hadoop.fetch("/lake/table", tmp_path / "table")
    assert parquet_numbers(tmp_path / "table") == PRICED
    assert sorted(DeltaTable(f"{hadoop.hdfs}/lake/delta").to_pyarrow_table()["n"].to_pylist()) == PRICED
    assert not Path("/lake").exists()
    eventually(lambda: not hadoop.executors(), PATIENCE_S)  # of the killed driver, too

    status = penstock("pipeline", "status", file)
    status.wait_for_line("penstock: checkpoint /lake/checkpoint is not on a disk of this machine")


def test_nodes_that_lack_the_python_of_the_driver_are_told(
    penstock: Penstock, stream_server: EmbeddedServer, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(FILE.format(url=stream_server.url))
    run = penstock("pipeline", "run", file, "--master", "yarn", env={"PYSPARK_PYTHON": "/nowhere/python"})
    run.wait_for_line(NO_PYTHON)
