"""Pipelines whose tables, checkpoint and staged batches are in S3, and a driver that is killed on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.files import Files
from penstock.spark.pipeline.running import Report
from tests.helpers.s3 import KEY, SECRET, S3Server
from tests.lakehouse.conftest import settings
from tests.spark.driver import Driver
from tests.spark.pipeline.conftest import add_orders, iceberg_catalogue, iceberg_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunOnce = Callable[..., Report]

KILLED = """
import json, os, signal, sys
from penstock.spark import session
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.files import Files
from penstock.spark.pipeline.running import Run

file, conf, moment = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

def die():
    print("killed", flush=True)
    os.killpg(0, signal.SIGKILL)

def mark(step):
    if step == moment:
        die()

rename = Files.rename

def torn(self, old, new):
    if moment == "torn" and "/table/" in new:
        names = self.walk(old)
        self._at(new)[0].mkdirs(self._at(new)[1])
        rename(self, old + "/" + names[0].path, new + "/" + names[0].path)
        die()
    rename(self, old, new)

Files.rename = torn
spark = session("killed", "local[2]", short=True, conf=conf)
Run(Pipeline.from_file(file), spark, once=True, mark=mark).run()
"""

FILE = """
name = "orders"
checkpoint = "{lake}/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "n bigint"
max_rows_per_batch = 30
[[step]]
sql = "SELECT n, timestamp FROM input"
[[sink]]
kind = "parquet"
path = "{lake}/table"
[[sink]]
kind = "delta"
path = "{lake}/delta"
library = "spark"
[[sink]]
kind = "delta"
name = "without jars"
path = "{lake}/jarless"
library = "python"
options = {store}
[[sink]]
kind = "iceberg"
table = "shop.orders"
catalog = {catalogue}
"""


@pytest.mark.parametrize("moment", ["torn", "iceberg committed"])
def test_a_killed_driver_leaves_each_row_once(
    spark: SparkSession,
    s3_server: S3Server,
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    start_driver: Callable[..., Driver],
    run: RunOnce,
    lake: str,
    store: dict[str, str],
    tmp_path: Path,
    moment: str,
) -> None:
    add_orders(stream_redis, 50)
    file = tmp_path / "orders.toml"
    catalogue = iceberg_catalogue(tmp_path) | iceberg_store(s3_server, lake)
    file.write_text(FILE.format(lake=lake, url=stream_server.url, store=inline(store), catalogue=inline(catalogue)))
    driver = start_driver(KILLED, str(file), json.dumps(settings(s3_server)), moment)
    driver.wait_for_line("killed")
    driver.kill()
    if moment == "torn":
        files = Files(spark)
        (begun,) = [name for name in files.names(f"{lake}/table") if name.startswith("batch=")]
        assert not files.is_shown(f"{lake}/table/{begun}")
    run(Pipeline.from_file(file))
    tables = [
        spark.read.parquet(f"{lake}/table"),
        spark.read.format("delta").load(f"{lake}/delta"),
        spark.read.format("delta").load(f"{lake}/jarless"),
    ]
    for table in tables:
        assert sorted(row["n"] for row in table.collect()) == list(range(50))
    assert iceberg_rows(catalogue, "shop.orders", "n") == list(range(50))


def inline(values: dict[str, str]) -> str:
    return "{ " + ", ".join(f'"{name}" = "{value}"' for name, value in values.items()) + " }"


def iceberg_store(s3: S3Server, lake: str) -> dict[str, str]:
    """Returns what PyIceberg needs to reach the same place."""
    return {
        "warehouse": lake.replace("s3a://", "s3://") + "/warehouse",
        "s3.endpoint": s3.options()["endpoint"],
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }
