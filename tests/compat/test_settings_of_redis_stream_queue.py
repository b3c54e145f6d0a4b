"""What redis-stream-queue's users pass to it, Penstock takes: the same names, defaults, addresses and serializers."""

from __future__ import annotations

import inspect
import socket
from dataclasses import fields
from typing import Any

import cbor2
import pytest
import redis_stream_queue as rsq

import penstock
from penstock import (
    ConsumerConfig,
    JsonSerializer,
    MsgpackSerializer,
    PickleSerializer,
    Serializer,
    StreamClient,
    StreamConsumer,
    StreamProducer,
)
from penstock.errors import ClusterSlotError, ConfigurationError
from penstock.testing import Cluster
from tests.helpers.aio import eventually, join, start

# Its RetryHandler and DLQHandler are parts of its inside that its README does not show.
INSIDE = {"RetryHandler", "DLQHandler"}
CLASSES = ["StreamClient", "StreamProducer", "StreamConsumer", "ConsumerConfig", "ConsumerGroup"]
VALUES = ["StreamMessage", "PendingEntry", "ConsumerInfo", "StreamStats", "ConsumerMetrics", "ProducerMetrics"]
METHODS = [
    ("StreamClient", "from_cluster"),
    ("StreamClient", "close"),
    ("StreamProducer", "push"),
    ("StreamProducer", "push_many"),
    ("StreamProducer", "ensure_group"),
    ("StreamProducer", "metrics"),
    ("StreamProducer", "all_metrics"),
    ("StreamProducer", "close"),
    ("StreamConsumer", "run"),
    ("StreamConsumer", "run_once"),
    ("StreamConsumer", "stop"),
    ("StreamConsumer", "metrics"),
    ("StreamConsumer", "all_metrics"),
    ("ConsumerConfig", "resolved_worker_name"),
    ("ConsumerGroup", "ensure"),
    ("ConsumerGroup", "reset"),
    ("ConsumerGroup", "stats"),
    ("ConsumerGroup", "health_check"),
    ("ConsumerGroup", "pending_details"),
]


# --- names and defaults ---------------------------------------------------------------------------


def test_every_name_that_it_exports_is_exported_here():
    assert set(rsq.__all__) - INSIDE <= set(penstock.__all__)


def accepted(function: Any) -> list[tuple[str, Any]]:
    """Returns the parameters that may be passed by position or by name, with their defaults, without **options."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.kind in kinds]


@pytest.mark.parametrize("name", CLASSES)
def test_a_constructor_takes_the_same_arguments_in_the_same_order_with_the_same_defaults(name):
    theirs, ours = accepted(getattr(rsq, name)), accepted(getattr(penstock, name))
    if name == "StreamConsumer":
        # There the handler is required; here it may be left out in favour of a message_handler.
        theirs = [(parameter, None if parameter == "handler" else default) for parameter, default in theirs]
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_a_method_takes_the_same_arguments(name, method):
    theirs = accepted(getattr(getattr(rsq, name), method))
    ours = accepted(getattr(getattr(penstock, name), method))
    if method == "push_many":  # one positional argument, which README and users pass as such
        theirs, ours = [("", default) for _, default in theirs], [("", default) for _, default in ours]
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("name", VALUES)
def test_a_value_has_the_same_fields_first(name):
    theirs = [field.name for field in fields(getattr(rsq, name))]
    ours = list(inspect.signature(getattr(penstock, name)).parameters)
    assert ours[: len(theirs)] == theirs


def test_the_reference_of_stream_client_holds():
    table = {
        "host": "localhost",
        "port": 6379,
        "db": 0,
        "username": None,
        "password": None,
        "prefix": "",
        "max_connections": 1000,
        "pool_timeout": 5,
        "ssl": False,
    }
    assert table.items() <= dict(accepted(StreamClient)).items()


def test_the_reference_of_consumer_config_holds():
    config = ConsumerConfig(group="order_workers")
    assert config.worker_name is None
    assert config.dlq_stream is None
    assert config.dlq_group is None
    assert config.batch_size == 100
    assert config.block_ms == 5000
    assert config.min_idle_claim_ms == 10000
    assert config.max_deliveries == 3
    assert config.max_stream_size == 100000
    assert config.max_claim_passes is None


# --- keys and worker names ------------------------------------------------------------------------


async def test_the_prefix_stands_before_the_names_of_all_streams(default_server, raw):
    async with StreamClient(host="127.0.0.1", port=default_server.port, prefix="shop") as client:
        producer = StreamProducer(client, "orders", group="order_workers")
        await producer.ensure_group()
        await producer.push({"order_id": 1})
        raw.xadd("shop_orders", {"data": "{broken"})
        config = ConsumerConfig(group="order_workers", dlq_stream="orders_dlq", dlq_group="auditors", block_ms=100)

        async def handle(messages: list[Any]) -> list[str]:
            return [m.id for m in messages]

        consumer = StreamConsumer(client=client, stream="orders", config=config, handler=handle)
        await consumer.run_once()
        await consumer.close()
    streams = {key.decode() for key in raw.scan_iter() if raw.type(key) == b"stream"}
    assert streams == {"shop_orders", "shop_orders_dlq"}
    assert raw.xlen("shop_orders_dlq") == 1
    assert raw.xinfo_groups("shop_orders_dlq")[0]["name"] == b"auditors"


def test_a_worker_is_named_after_group_and_host_and_is_unique():
    names = {ConsumerConfig(group="order_workers").resolved_worker_name() for _ in range(1000)}
    assert len(names) == 1000, "with four random digits a thousand workers collide"
    start_of_name = f"order_workers_{socket.gethostname()}_"
    assert all(name.startswith(start_of_name[:40]) and len(name) <= 64 for name in names)


def test_a_long_group_is_cut_so_that_host_and_suffix_stay(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-a")
    name = ConsumerConfig(group="g" * 100).resolved_worker_name()
    group, host, suffix = name.split("_")
    assert len(name) == 64
    assert set(group) == {"g"}
    assert host == "pod-a"
    assert len(suffix) >= 4


def test_a_given_worker_name_is_used_as_it_is():
    assert ConsumerConfig(group="order_workers", worker_name="pod-a").resolved_worker_name() == "pod-a"


# --- addresses ------------------------------------------------------------------------------------


def test_every_way_to_make_a_client_is_understood():
    client = StreamClient.from_cluster(startup_nodes=[{"host": "node1", "port": 6379}], password="secret")
    assert client.is_cluster
    assert (client.settings.hosts, client.settings.password) == ((("node1", 6379),), "secret")

    client = StreamClient.from_url("redis://localhost:6379/0")
    assert (client.settings.kind, client.settings.hosts, client.settings.db) == ("single", (("localhost", 6379),), 0)

    client = StreamClient.from_url("rediss://user:pass@host:6380/0")
    assert (client.settings.tls, client.settings.username, client.settings.password) == (True, "user", "pass")

    client = StreamClient.from_url("redis+cluster://node1:6379")
    assert client.is_cluster
    assert (client.settings.hosts, client.settings.tls) == ((("node1", 6379),), False)

    client = StreamClient.from_url("rediss+cluster://node1:6380")
    assert client.is_cluster
    assert (client.settings.hosts, client.settings.tls) == ((("node1", 6380),), True)


def test_nothing_that_is_said_about_a_cluster_is_dropped():
    nodes = [{"host": "node1", "port": 6379}]
    client = StreamClient.from_cluster(nodes, username="shop", password="secret", ssl=True, max_connections=7)
    settings = client.settings
    assert (settings.username, settings.password, settings.tls, settings.max_connections) == ("shop", "secret", True, 7)


@pytest.mark.parametrize("way", ["from_url", "from_cluster"])
async def test_a_cluster_is_reached_by_url_and_by_nodes(cluster: Cluster, way):
    host, port = cluster.addresses[0]
    if way == "from_url":
        client = StreamClient.from_url(f"redis+cluster://{host}:{port}")
    else:
        client = StreamClient.from_cluster(startup_nodes=[{"host": host, "port": port}])
    seen = []

    async def handle(messages: list[Any]) -> list[str]:
        seen.extend(message.data["n"] for message in messages)
        return [message.id for message in messages]

    async with client:
        for n, stream in enumerate(["{orders}_main", "{payments}_main", "{events}_main"]):  # on different nodes
            await StreamProducer(client, stream).push({"n": n})
            dlq_stream = stream.replace("_main", "_dlq")
            config = ConsumerConfig(group="order_workers", dlq_stream=dlq_stream, block_ms=100)
            consumer = StreamConsumer(client=client, stream=stream, config=config, handler=handle)
            running = start(consumer.run)
            await eventually(lambda consumer=consumer: consumer.metrics().total_acked == 1)
            consumer.stop()
            await join(running)
    assert seen == [0, 1, 2]


def test_dead_letters_in_another_slot_are_refused_before_anything_is_lost():
    client = StreamClient.from_url("redis+cluster://node1:6379")
    config = ConsumerConfig(group="order_workers", dlq_stream="{others}_dlq")

    async def handle(messages: list[Any]) -> list[str]:
        return []

    with pytest.raises(ClusterSlotError, match="hash tag"):
        StreamConsumer(client=client, stream="{orders}_main", config=config, handler=handle)


# --- serializers ----------------------------------------------------------------------------------


class CborSerializer:
    def encode(self, data: dict) -> bytes:
        return cbor2.dumps(data)

    def decode(self, raw: bytes) -> dict:
        return cbor2.loads(raw)


@pytest.mark.parametrize(
    "serializer",
    [JsonSerializer(), MsgpackSerializer(), PickleSerializer(allow_pickle=True), CborSerializer()],
    ids=lambda serializer: type(serializer).__name__,
)
async def test_producer_and_consumer_with_the_same_serializer_understand_each_other(default_server, raw, serializer):
    assert isinstance(serializer, Serializer)
    got = []

    async def handle(messages: list[Any]) -> list[str]:
        got.extend(message.data for message in messages)
        return [message.id for message in messages]

    async with StreamClient(host="127.0.0.1", port=default_server.port) as client:
        producer = StreamProducer(client, "orders", serializer=serializer)
        await producer.push({"order_id": 1, "name": "Zoë"})
        config = ConsumerConfig(group="order_workers", block_ms=100)
        consumer = StreamConsumer(client, "orders", config, handler=handle, serializer=serializer)
        await consumer.run_once()
        await consumer.close()
    assert got == [{"order_id": 1, "name": "Zoë"}]
    [(_, entry)] = raw.xrange("orders")
    assert serializer.decode(entry[b"data"]) == got[0], "the payload is the serializer's bytes and nothing else"


def test_pickle_must_be_chosen_twice():
    with pytest.raises(ConfigurationError, match="allow_pickle=True"):
        PickleSerializer()
