from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.fast_start import java_options

if TYPE_CHECKING:
    import redis

_PROJECT = """
name: orders
storage: file://{place}/storage
libraries:
  - glob:
      include: flows/**
"""
_FLOW = """
import os
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

@dp.table
def orders():
    source = SparkSession.active().readStream.format("redis_streams").option("url", os.environ["ORDERS_URL"])
    return source.option("streams", "orders").option("startingOffsets", "earliest").load()
"""


@pytest.mark.slow
def test_a_declarative_pipeline_finds_the_format_by_itself(
    java: Path, tmp_path: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    pytest.importorskip("yaml")
    from tests.spark.clusters import spark_home

    for n in range(10):
        stream_redis.xadd("orders", {"data": str(n)})
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "orders.py").write_text(_FLOW)
    (tmp_path / "spark-pipeline.yml").write_text(_PROJECT.format(place=tmp_path))
    settings = ("--conf", "spark.driver.memory=1g", "--conf", f"spark.driver.extraJavaOptions={java_options()}")
    done = subprocess.run(
        [spark_home() / "bin" / "spark-pipelines", "--remote", "local[2]", *settings, "run"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "ORDERS_URL": stream_server.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    files = (tmp_path / "spark-warehouse" / "orders").glob("*.parquet")
    assert sum(pq.read_metadata(file).num_rows for file in files) == 10
