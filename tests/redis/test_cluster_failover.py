"""A node of a cluster dies and its replica takes over: producers, consumers and plain commands find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import ConsumerConfig
from penstock.errors import ConnectionFailed, ConnectionLost, GroupLost, PenstockError, ServerBusy
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.scripts import ScriptRunner, script
from penstock.redis.settings import ConnectionSettings
from penstock.testing import Cluster
from penstock.testing.servers import NEWEST
from tests.helpers.threads import eventually
from tests.redis.halves import Half
from tests.redis.patient_queue import goes_on
from tests.redis.slots import node_id, owner, tell

STREAM = "{doomed}_main"
QUICK = {"cluster-node-timeout": "2000", "repl-diskless-sync-delay": "0"}


@pytest.fixture
def cluster_with_replica() -> Iterator[tuple[Cluster, EmbeddedServer]]:
    """A cluster in which the owner of the stream, which is returned, has a replica."""
    with Cluster(options=QUICK) as cluster:
        replica = NEWEST.server(port=0, options={"cluster-enabled": "yes", **QUICK})
        with replica:
            place = owner(cluster, tell(cluster.addresses[0], "CLUSTER", "KEYSLOT", STREAM))
            doomed = next(node for node in cluster.nodes if node.port == place[1])
            address = ("127.0.0.1", replica.port)
            tell(address, "CLUSTER", "MEET", *place)
            eventually(lambda: _obeys(address, place))
            eventually(lambda: b"master_link_status:up" in tell(address, "INFO", "replication"))
            eventually(lambda: all(_knows_slave(node) for node in cluster.addresses))
            yield cluster, doomed


def _obeys(address: Any, master: Any) -> bool:
    try:
        return bool(tell(address, "CLUSTER", "REPLICATE", node_id(master)) == b"OK")
    except Exception:  # it has not heard of its master yet
        return False


def _knows_slave(address: Any) -> bool:
    return b"slave" in tell(address, "CLUSTER", "NODES")


def test_a_queue_goes_on_when_its_node_dies(half: Half, cluster_with_replica: tuple[Cluster, EmbeddedServer]) -> None:
    cluster, doomed = cluster_with_replica
    url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    # Each has a client of its own, so that none profits from what another has learnt.
    publishing, consuming, asking = (half.client(url, socket_connect_timeout=1) for _ in range(3))
    producer = half.api.StreamProducer(publishing, STREAM)
    handled: list[Any] = []
    config = ConsumerConfig(group="g", block_ms=100, min_idle_claim_ms=600, handle_signals=False)
    consumer = half.api.StreamConsumer(
        consuming, STREAM, config, message_handler=lambda message: handled.append(message.data)
    )
    half.do(producer.push, "before")
    running = half.start(consumer.run)
    eventually(lambda: consumer.metrics().total_acked == 1)
    assert half.do(asking.call, STREAM, "XLEN", STREAM) == 1

    doomed.kill()
    half.do(producer.push, "after")
    eventually(lambda: running.done() or "after" in handled)
    eventually(lambda: _length(half, asking) == 2)
    half.do(consumer.stop)
    running.result(30)
    assert handled[-1] == "after"


def _length(half: Half, client: Any) -> int:
    try:
        return int(half.do(client.call, STREAM, "XLEN", STREAM))
    except (ConnectionFailed, ConnectionLost, ServerBusy):
        return 0


def test_a_heartbeat_that_begins_while_its_node_is_dead_finds_the_replica(
    cluster_with_replica: tuple[Cluster, EmbeddedServer],
) -> None:
    cluster, doomed = cluster_with_replica
    lane = ScriptRunner(ConnectionSettings(kind="cluster", hosts=tuple(cluster.addresses)), STREAM)

    def beat() -> PenstockError | None:
        try:
            lane.run(script("streams/renew"), (1, STREAM, "g", "me", "", 0, "1-1"))
        except PenstockError as error:
            return error
        return None

    doomed.kill()
    # It is the owner still, unless this test stood still for as long as the others take to notice its death.
    assert isinstance(beat(), ConnectionFailed | ServerBusy | GroupLost)
    eventually(lambda: isinstance(beat(), GroupLost))  # so says the new one, for there is no group
    lane.close()


def test_who_rests_between_two_tries_goes_on_when_the_replica_has_taken_over(
    half: Half, cluster_with_replica: tuple[Cluster, EmbeddedServer]
) -> None:
    cluster, doomed = cluster_with_replica
    url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    goes_on(half, url, "{doomed}_queue", doomed.kill)
