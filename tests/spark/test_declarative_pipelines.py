from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.declarative import rows
from penstock.spark.pipeline import Function, Source, Sql
from penstock.spark.runtime.fast_start import java_options
from tests.spark.driver import PYTHONPATH
from tests.spark.pipeline.conftest import add_orders, dead_letters

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


_SHOP = """
import os
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from penstock.spark.declarative import rows
from penstock.spark.pipeline import Handler, Source

URL = os.environ["ORDERS_URL"]

source = Source(url=URL, streams=("orders",), schema="n bigint NOT NULL", valid=("n < 100",))
orders = rows("shop", source, Handler("tests.spark.pipeline.shop:score", output="score double"))

@dp.table
def scored():
    return orders.drop("headers")

dp.create_sink("scores", "redis_streams", {"url": URL, "stream": "scores"})

@dp.append_flow(target="scores")
def publish():
    return SparkSession.active().readStream.table("scored").selectExpr("n", "score")
"""


def _run(place: Path, url: str, *conf: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("yaml")
    from tests.spark.clusters import spark_home

    settings = ("--conf", "spark.driver.memory=1g", "--conf", f"spark.driver.extraJavaOptions={java_options()}")
    return subprocess.run(
        [spark_home() / "bin" / "spark-pipelines", "--remote", "local[2]", *settings, *conf, "run"],
        cwd=place,
        env={
            **os.environ,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": PYTHONPATH,
            "ORDERS_URL": url,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def _project(place: Path, flow: str) -> None:
    (place / "flows").mkdir()
    (place / "flows" / "orders.py").write_text(flow)
    (place / "spark-pipeline.yml").write_text(_PROJECT.format(place=place))


def _table_rows(place: Path, name: str) -> int:
    files = (place / "spark-warehouse" / name).glob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


@pytest.mark.slow
def test_a_declarative_pipeline_finds_the_format_by_itself(
    java: Path, tmp_path: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    for n in range(10):
        stream_redis.xadd("orders", {"data": str(n)})
    _project(tmp_path, _FLOW)
    done = _run(tmp_path, stream_server.url)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert _table_rows(tmp_path, "orders") == 10


@pytest.mark.slow
def test_a_declarative_pipeline_has_handlers_dead_letters_and_a_sink_that_doubles_nothing(
    java: Path, tmp_path: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    add_orders(stream_redis, 20)
    stream_redis.xadd("orders", {"data": "no JSON"})
    stream_redis.xadd("orders", {"data": json.dumps({"n": 100})})
    _project(tmp_path, _SHOP)
    for added in (0, 10):
        add_orders(stream_redis, added, first=20)
        done = _run(tmp_path, stream_server.url, "--conf", "spark.sql.catalogImplementation=hive")
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        scored = [n for n in range(20 + added) if n % 10 not in (7, 8)]
        assert _table_rows(tmp_path, "scored") == len(scored)
        found = [json.loads(fields[b"data"]) for _, fields in stream_redis.xrange("scores")]
        assert sorted(found, key=lambda row: row["n"]) == [{"n": n, "score": n / 2} for n in scored]
    reasons = sorted(letter["dlq_reason"] for letter in dead_letters(stream_redis))
    assert reasons == sorted(["decode_error", "invalid", *["fatal"] * 3, *["max_deliveries"] * 3])


def test_steps_that_need_a_temporary_view_are_refused() -> None:
    source = Source(url="redis://localhost", streams=("orders",), schema="n bigint")
    for step in (Sql("SELECT n FROM input"), Function("shop:score", name="scored")):
        with pytest.raises(ConfigurationError, match="as a table of the project"):
            rows("shop", source, step)
