"""Every kind of Redis with every kind of Spark: reading and writing, batch and streaming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import trustme
from pyspark.errors import PySparkException

from penstock.redis.embedded import EmbeddedServer
from penstock.spark import register
from penstock.testing import Cluster
from tests.redis.slots import tags_on_all_nodes
from tests.redis.test_tls import Authority, TlsServer, started
from tests.spark.clusters import Standalone
from tests.spark.driver import Driver
from tests.spark.end_to_end.queries import cluster_url, column, fill, in_order, numbers, read
from tests.spark.end_to_end.tour import tour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOUR = """
import json, sys
from penstock.spark import session
from penstock.spark.runtime import code_shipping
from tests.spark.end_to_end.tour import tour
spark = session(master=sys.argv[1], short=True, conf=json.loads(sys.argv[2]))
print("toured", json.dumps(tour(spark, sys.argv[3], "orders", sys.argv[4])))
print("carried", code_shipping.is_carried())
spark.stop()
"""
COMPLETE = {"read": numbers(50), "streamed": numbers(50), "written": numbers(50)}


# --- kinds of Spark -----------------------------------------------------------------------------------


def test_classic(spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path) -> None:
    fill(stream_redis, "orders", 50)
    assert tour(spark, stream_server.url, "orders", str(tmp_path)) == COMPLETE


@pytest.mark.slow
def test_a_standalone_cluster(
    start_driver: Callable[..., Driver], standalone: Standalone, stream_server: EmbeddedServer,
    stream_redis: redis.Redis, tmp_path: Path,
) -> None:  # fmt: skip
    fill(stream_redis, "orders", 50)
    conf = json.dumps(dict(standalone.conf))
    driver = start_driver(_TOUR, standalone.url, conf, stream_server.url, str(tmp_path))
    assert json.loads(driver.wait_for_line("^toured (.*)")[1]) == COMPLETE
    assert "carried False" in driver.end(), "executors that have Penstock import their own"


@pytest.mark.slow
def test_spark_connect(
    connect: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    register(connect)
    fill(stream_redis, "orders", 50)
    assert tour(connect, stream_server.url, "orders", str(tmp_path)) == COMPLETE


# --- kinds of Redis -----------------------------------------------------------------------------------


@pytest.mark.rotates
def test_a_redis_cluster_with_streams_on_all_nodes(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    tags = tags_on_all_nodes(cluster)
    assert len(tags) == 3
    names = [f"orders:{{{tag}}}" for tag in tags]
    with redis.RedisCluster(*cluster.addresses[0]) as client:
        for n, name in enumerate(names):
            fill(client, name, 20, first=20 * n)
        fill(client, "other", 5)
        rows = read(spark, cluster_url(cluster), ",".join(names), "stream string, data string", minPartitions=4)
        assert column(rows) == numbers(60)
        assert {row.stream for row in rows.select("stream").distinct().collect()} == set(names)
        expected = numbers(60)
        found = tour(spark, cluster_url(cluster), "orders:*", str(tmp_path), "written")
        assert found == {"read": expected, "streamed": expected, "written": expected}
        # Rows that name their streams go to all nodes.
        rows.write.format("redis_streams").option("url", cluster_url(cluster)).mode("append").save()
        assert [client.xlen(name) for name in names] == [40, 40, 40]


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[TlsServer, Authority]]:
    authority = Authority(trustme.CA(), tmp_path)
    server = started(authority)
    yield server, authority
    server.server.stop()


@pytest.mark.rotates
def test_tls(spark: SparkSession, tls: tuple[TlsServer, Authority], tmp_path: Path) -> None:
    server, authority = tls
    with redis.Redis(unix_socket_path=server.server.unix_socket) as client:
        fill(client, "orders", 50)
    options: dict[str, Any] = {"redis.ssl_ca_certs": authority.pem}
    assert tour(spark, server.url, "orders", str(tmp_path / "by-option"), **options) == COMPLETE
    by_url = f"{server.url}?ssl_ca_certs={authority.pem}"
    assert column(read(spark, by_url, "orders")) == in_order(numbers(50))
    with pytest.raises(PySparkException, match="certificate verify failed"):
        read(spark, server.url, "orders", retryTimeout="0s").collect()
    unchecked = {"redis.ssl_cert_reqs": "none", "redis.ssl_check_hostname": "false"}
    assert column(read(spark, server.url, "orders", **unchecked)) == numbers(50)
