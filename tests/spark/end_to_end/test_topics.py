"""Topics: Spark reads the shards that consumers share as partitions of one table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.redis.embedded import EmbeddedServer
from penstock.sync import StreamClient, Topic, TopicProducer
from tests.spark.end_to_end.queries import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_shards_of_a_topic_are_partitions_of_one_table(spark: SparkSession, stream_server: EmbeddedServer) -> None:
    topic, neighbour = Topic("orders", shards=4), Topic("orders:eu", shards=2)
    with StreamClient.from_url(stream_server.url) as client:
        producer = TopicProducer(client, topic)
        places = [producer.push({"n": number}, key=f"customer-{number % 20}") for number in range(200)]
        TopicProducer(client, neighbour).push({"n": -1}, key="somebody")
    reader = spark.read.format(FORMAT).option("url", stream_server.url).option("subscribePattern", topic.spark_pattern)
    reader = reader.option("minPartitions", 4)
    table = reader.schema("stream string, id string, key string, data string").load()
    assert table.rdd.getNumPartitions() >= 4
    rows = table.collect()
    assert {(row.stream, row.id) for row in rows} == set(places)
    # No partition mixes shards, so each reads one stream in its order.
    mixed = table.rdd.mapPartitions(lambda part: [len({row.stream for row in part})]).collect()
    assert max(mixed) == 1
    by_key: dict[str, list[int]] = {}
    for row in rows:
        assert row.stream == topic.stream(topic.shard_of(row.key))
        by_key.setdefault(row.key, []).append(json.loads(row.data)["n"])
    assert all(numbers == sorted(numbers) and len(numbers) == 10 for numbers in by_key.values())
