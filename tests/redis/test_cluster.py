"""A Redis Cluster: every stream on its node, hash tags where keys change together, and moved slots found again."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConsumerConfig
from penstock.errors import ClusterSlotError, ConfigurationError, ConnectionFailed
from penstock.redis.master_watch import MasterWatch
from penstock.redis.retry import Repeat
from penstock.redis.scripts import ScriptRunner, script
from penstock.testing import Cluster, FaultProxy
from tests.helpers.threads import eventually
from tests.redis.halves import Half, SyncHalf, nothing_left_open
from tests.redis.slots import SlotMove, owner, tags_on_all_nodes, tell


def url(cluster: Cluster) -> str:
    return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)


def config(**settings: Any) -> ConsumerConfig:
    quick = {"block_ms": 100, "min_idle_claim_ms": 60_000, "retry_initial_delay_ms": 50, "handle_signals": False}
    return ConsumerConfig(group="g", **{**quick, **settings})


def run_until(half: Half, consumer: Any, condition: Any) -> None:
    """Runs a consumer until the condition holds."""
    running = half.start(consumer.run)
    try:
        eventually(lambda: running.done() or condition())
    finally:
        half.do(consumer.stop)
    running.result(30)


def test_every_node_is_reached_from_any_of_them(half: Half, cluster: Cluster) -> None:
    first = cluster.addresses[0]
    clients = [
        half.client(url(cluster)),
        half.client(f"redis+cluster://{first[0]}:{first[1]}"),
        half.owned(half.api.StreamClient.from_cluster([{"host": first[0], "port": first[1]}])),
        half.owned(half.api.StreamClient.from_cluster([{"host": h, "port": str(p)} for h, p in cluster.addresses])),
    ]
    for client in clients:
        assert client.is_cluster
        assert half.do(client.ping)
        for tag in tags_on_all_nodes(cluster):
            assert half.do(client.call, f"{{{tag}}}", "INCR", f"{{{tag}}}", repeat=Repeat.ONCE)
    for tag in tags_on_all_nodes(cluster):
        key = f"{{{tag}}}"
        place = owner(cluster, tell(cluster.addresses[0], "CLUSTER", "KEYSLOT", key))
        assert tell(place, "GET", key) == b"4"
    assert half.do(clients[0].capabilities).is_cluster


def test_a_queue_with_one_tag_works_from_end_to_end(half: Half, cluster: Cluster) -> None:
    client = half.client(url(cluster), prefix="shop")
    producer = half.api.StreamProducer(client, "{orders}_main", "g")
    half.do(producer.push_many, list(range(20)))
    half.do(producer.push, 20, dedup_key="once", key="k", headers={"a": "b"})
    half.do(producer.push, 20, dedup_key="once")
    handled: list[int] = []

    def handle(message: Any) -> None:
        handled.append(message.data)
        if message.data % 10 == 3:
            raise RuntimeError("no")

    settings = config(dlq_stream="{orders}_dlq", dlq_group="dead", max_deliveries=2)
    consumer = half.api.StreamConsumer(client, "{orders}_main", settings, message_handler=handle)
    letters = half.api.DeadLetters(client, "{orders}_main", "{orders}_dlq")
    run_until(half, consumer, lambda: consumer.metrics().total_acked == 19 and consumer.metrics().total_dlq == 2)
    assert sorted(set(handled)) == list(range(21))
    assert handled.count(3) == handled.count(13) == 2
    assert half.do(letters.count) == 2
    group = half.api.ConsumerGroup(client, "{orders}_main", "g")
    stats = half.do(group.stats, "{orders}_dlq")
    assert (stats.stream_length, stats.lag, stats.group_pel_size, stats.dlq_length) == (21, 0, 0, 2)
    assert half.do(group.health_check)["healthy"]
    assert len(half.do(letters.redrive)) == 2
    assert half.do(group.lag).count == 2


def test_streams_on_different_nodes_share_a_client(half: Half, cluster: Cluster) -> None:
    client = half.client(url(cluster))
    tags = tags_on_all_nodes(cluster)
    handled: dict[str, list[int]] = {tag: [] for tag in tags}
    consumers, running = [], []
    for tag in tags:
        half.do(half.api.StreamProducer(client, f"{{{tag}}}").push_many, list(range(10)))
        consumer = half.api.StreamConsumer(
            client, f"{{{tag}}}", config(), message_handler=lambda m, tag=tag: handled[tag].append(m.data)
        )
        consumers.append(consumer)
        running.append(half.start(consumer.run))
    eventually(lambda: all(sorted(found) == list(range(10)) for found in handled.values()))
    for consumer, call in zip(consumers, running, strict=True):
        half.do(consumer.stop)
        call.result(30)


def test_an_untagged_stream_is_published_but_not_consumed_with_its_default_dead_letters(
    half: Half, cluster: Cluster
) -> None:
    client = half.client(url(cluster))
    half.do(half.api.StreamProducer(client, "orders").push, {"n": 1}, dedup_key="once")
    for construct in (
        lambda: half.api.StreamConsumer(client, "orders", config(), message_handler=print),
        lambda: half.api.StreamConsumer(client, "{a}", config(dlq_stream="{b}"), message_handler=print),
        lambda: half.api.DeadLetters(client, "orders"),
        lambda: half.api.DeadLetters(client, "{a}", "{b}"),
    ):
        with pytest.raises(ClusterSlotError, match=r"different cluster slots.*'\{orders\}_main' and '\{orders\}_dlq'"):
            construct()
    assert issubclass(ClusterSlotError, ConfigurationError)


def test_a_tagged_stream_needs_no_dlq_stream(half: Half, cluster: Cluster) -> None:
    client = half.client(url(cluster))
    half.do(half.api.StreamProducer(client, "{orders}_main").push, {"n": 1})
    consumer = half.api.StreamConsumer(
        client, "{orders}_main", config(max_deliveries=1), message_handler=lambda _message: 1 / 0
    )
    run_until(half, consumer, lambda: consumer.metrics().total_dlq == 1)
    assert half.do(half.api.DeadLetters(client, "{orders}_main").count) == 1


def test_the_same_names_are_fine_on_a_single_server(half: Half) -> None:
    client = half.api.StreamClient()
    half.api.StreamConsumer(client, "orders", config(), message_handler=print)
    half.api.DeadLetters(client, "orders", "elsewhere")


def test_nothing_is_left_open(half: Half, cluster: Cluster) -> None:
    def story() -> None:
        client = half.client(url(cluster))
        half.do(half.api.StreamProducer(client, "{moved}").push, 1)
        SlotMove(cluster, "{moved}").begin().finish()
        consumer = half.api.StreamConsumer(client, "{moved}", config(), message_handler=lambda _message: None)
        run_until(half, consumer, lambda: consumer.metrics().total_acked == 1)
        half.do(client.close)

    with nothing_left_open():
        story()


# --- a slot that has moved --------------------------------------------------------------------------


def test_a_moved_slot_is_found_by_commands_scripts_and_producers(half: Half, cluster: Cluster) -> None:
    client = half.client(url(cluster))
    producer = half.api.StreamProducer(client, "{moved}", "g")
    half.do(producer.push, 1)
    half.do(producer.ensure_group)
    group = half.api.ConsumerGroup(client, "{moved}", "g")
    for expected in (1, 2, 3):
        SlotMove(cluster, "{moved}").begin().finish()
        assert half.do(client.call, "{moved}", "XLEN", "{moved}") == expected
        SlotMove(cluster, "{moved}").begin().finish()
        assert half.do(group.lag).count == expected
        SlotMove(cluster, "{moved}").begin().finish()
        half.do(producer.push, 1)


def test_a_crowd_of_callers_finds_a_moved_slot_together(half: Half, cluster: Cluster) -> None:
    client = half.client(url(cluster))
    half.do(client.call, "{crowd}", "INCR", "{crowd}", repeat=Repeat.ONCE)
    SlotMove(cluster, "{crowd}").begin().finish()
    calls = [half.start(client.call, "{crowd}", "INCR", "{crowd}", repeat=Repeat.ONCE) for _ in range(100)]
    assert sorted(call.result(30) for call in calls) == list(range(2, 102))


def test_a_consumer_follows_its_stream_and_keeps_its_leases(half: Half, cluster: Cluster) -> None:
    client = half.client(url(cluster))
    producer = half.api.StreamProducer(client, "{moved}")
    half.do(producer.push, "long")
    handled: list[Any] = []
    may_end = []

    def handle(message: Any) -> None:
        handled.append(message.data)
        if message.data == "long":
            eventually(lambda: may_end)

    # A lease that does not run out here, however slow the machine, and a heart that beats fast.
    settings = config(concurrency=4, min_idle_claim_ms=60_000, heartbeat_interval_ms=50)
    consumers = [half.api.StreamConsumer(client, "{moved}", settings, message_handler=handle) for _ in range(2)]
    running = [half.start(consumer.run) for consumer in consumers]
    eventually(lambda: handled == ["long"])
    move = SlotMove(cluster, "{moved}").begin().finish()
    moved_at_ms = server_ms(move.target)
    half.do(producer.push, "short")
    eventually(lambda: "short" in handled)
    # The heartbeat has found the new node as well: the lease begins anew there.
    eventually(lambda: renewed_at_ms(move.target, "{moved}") > moved_at_ms)
    may_end.append(True)
    eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 2)
    for consumer, call in zip(consumers, running, strict=True):
        half.do(consumer.stop)
        call.result(30)
    assert sorted(handled) == ["long", "short"]


def server_ms(address: tuple[str, int]) -> int:
    """Returns the time of a node."""
    seconds, micros = tell(address, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def renewed_at_ms(address: tuple[str, int], stream: str) -> int:
    """Returns when the oldest message in hand was handed out or renewed, by the clock of the node; rather too early."""
    now_ms = server_ms(address)
    return now_ms - int(tell(address, "XPENDING", stream, "g", "-", "+", 1)[0][2])


def test_a_heartbeat_follows_a_moved_slot_at_once_and_asks_nobody_for_the_map(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SyncHalf().client(url(cluster))
    entry_id = client.call("{moved}", "XADD", "{moved}", "*", "a", "1", repeat=Repeat.ONCE)
    client.call("{moved}", "XGROUP", "CREATE", "{moved}", "g", "0", repeat=Repeat.ONCE)
    client.call("{moved}", "XREADGROUP", "GROUP", "g", "me", "STREAMS", "{moved}", ">", repeat=Repeat.ONCE)
    lane = ScriptRunner(client.settings, "{moved}")
    renewal = script("streams/renew"), (1, "{moved}", "g", "me", "", 0, entry_id)
    assert lane.run(*renewal) == [[], []]
    monkeypatch.setattr(MasterWatch, "ask", None)  # which is how to wait for the map
    for _ in range(2):
        SlotMove(cluster, "{moved}").begin().finish()
        assert lane.run(*renewal) == [[], []]
    lane.close()
    client.close()


# --- nodes that go ----------------------------------------------------------------------------------


def test_nodes_seen_before_are_asked_when_the_given_one_is_gone(half: Half, cluster: Cluster) -> None:
    with FaultProxy(cluster.addresses[0]) as proxy:
        client = half.client(f"redis+cluster://127.0.0.1:{proxy.port}")
        assert half.do(client.call, "{gone}", "INCR", "{gone}", repeat=Repeat.ONCE) == 1
        proxy.refuse()
        proxy.reset_all()
        SlotMove(cluster, "{gone}").begin().finish()
        assert half.do(client.call, "{gone}", "INCR", "{gone}", repeat=Repeat.ONCE) == 2


def test_a_cluster_that_cannot_be_reached_is_named(half: Half) -> None:
    client = half.client("redis+cluster://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2"):
        half.do(client.ping)


@pytest.mark.parametrize(
    "nodes", [[], [{"host": "h"}], ["localhost:7000"], [{"host": "h", "port": "x"}], [{"host": "h", "port": 0}]]
)
def test_startup_nodes_are_checked(half: Half, nodes: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"startup_nodes|port="):
        half.api.StreamClient.from_cluster(nodes)
