"""A database with a driver from Maven: each row once after a crash at every step, in a schema of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import redis

from penstock.spark.pipeline import Jdbc, Pipeline, Sql
from penstock.spark.pipeline.running import Report
from tests.spark.pipeline.conftest import add_orders
from tests.spark.pipeline.test_crashes import crash_after_each

if TYPE_CHECKING:
    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]


def test_rows_and_keys_are_there_once(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, postgres: PostgresServer
) -> None:
    add_orders(stream_redis, 30)
    postgres.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (n bigint PRIMARY KEY, name text, at timestamptz)")
    url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?user=penstock"
    sinks = (Jdbc(url, "shop.orders"), Jdbc(url, "shop.names", key=("name",), create=True, name="names"))
    query = "SELECT n, concat('o-', n % 3) AS name, timestamp AS at FROM input"
    pipeline = pipeline_of(Sql(query), sinks=sinks, source_max_rows_per_batch=20)
    crash_after_each(run, pipeline, ["jdbc staged", "jdbc moved", "jdbc committed"])
    add_orders(stream_redis, 5, first=30)
    run(pipeline)
    assert [n for (n,) in postgres.execute("SELECT n FROM shop.orders ORDER BY n")] == list(range(35))
    assert postgres.execute("SELECT name FROM shop.names ORDER BY name") == [("o-0",), ("o-1",), ("o-2",)]
    tables = postgres.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'penstock%'")
    assert tables == [("penstock_jdbc_batches",)]
