"""A slot that moves under load: no error reaches a caller, nothing is lost, nothing comes twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import ConsumerConfig
from penstock.errors import NotDurable
from penstock.redis.retry import Repeat
from penstock.testing import Cluster
from penstock.testing.servers import DEFAULT, FLOOR
from tests.helpers.threads import eventually
from tests.redis.halves import Half
from tests.redis.slots import SlotMove, tell

STREAM = "{moving}_main"
LEASE_MS = 60_000


@pytest.fixture
def client(half: Half, cluster: Cluster) -> Any:
    return half.client("redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses))


@pytest.fixture(scope="module", params=[FLOOR, DEFAULT], ids=lambda kind: kind.name)
def older_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(request.param) as made:
        yield made


def config(**settings: Any) -> ConsumerConfig:
    quick = {"block_ms": 100, "min_idle_claim_ms": LEASE_MS, "recovery_interval_ms": 300, "handle_signals": False}
    return ConsumerConfig(group="g", **{**quick, **settings})


class Line:
    """A producer and a consumer at work, and what came out."""

    def __init__(self, half: Half, client: Any) -> None:
        self.half = half
        self.producer = half.api.StreamProducer(client, STREAM)
        self.handled: Counter[Any] = Counter()
        self.events: list[Any] = []
        self.consumer = half.api.StreamConsumer(
            client, STREAM, config(), message_handler=self._handle, on_event=self.events.append
        )
        self._published = 0
        self._is_over = threading.Event()

    def _handle(self, message: Any) -> None:
        self.handled[message.data] += 1

    def publish_on_and_on(self) -> int:
        """Publishes one message after the other until it is told to stop."""
        while not self._is_over.is_set():
            self.half.do(self.producer.push, self._published)
            self._published += 1
        return self._published

    def run_through(self, story: Any) -> int:
        """Plays the story while both are at work; returns how many messages were published, all handled by then."""
        consuming = self.half.start(self.consumer.run)
        publishing = in_thread(self.publish_on_and_on)
        try:
            story(self)
        finally:
            self._is_over.set()
        published = int(publishing())
        eventually(lambda: consuming.done() or len(self.handled) >= published)
        eventually(lambda: consuming.done() or self.consumer.metrics().total_acked >= published)
        self.half.do(self.consumer.stop)
        consuming.result(30)
        return published

    def progress(self, count: int = 20) -> None:
        """Waits until so many further messages were handled."""
        wanted = len(self.handled) + count
        eventually(lambda: len(self.handled) >= wanted)


def in_thread(function: Any) -> Any:
    """Runs a function beside the test; what is returned gives its result."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # raised by the caller
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert outcome, "it still runs"
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    return result


def move_to_and_fro(cluster: Cluster) -> Any:
    def story(line: Line) -> None:
        for _ in range(4):
            line.progress()
            move = SlotMove(cluster, STREAM).begin()
            move.move(STREAM)  # the stream first, the keys beside it later: nobody can work in between
            time.sleep(0.1)  # the length of the fault: who waits meanwhile does not say so
            move.move()
            time.sleep(0.1)  # the length of its second half
            move.finish()
        line.progress()

    return story


def check(line: Line, published: int, cluster: Cluster) -> None:
    place = SlotMove(cluster, STREAM).source
    assert set(line.handled) == set(range(published)), "nothing is lost"
    assert tell(place, "XLEN", STREAM) == published, "nothing is published twice"
    assert [data for data, times in line.handled.items() if times > 1] == [], "nothing is handled twice"
    assert tell(place, "XPENDING", STREAM, "g")[0] == 0


def test_moving_to_and_fro_under_load(half: Half, client: Any, cluster: Cluster) -> None:
    line = Line(half, client)
    check(line, line.run_through(move_to_and_fro(cluster)), cluster)


def test_moving_to_and_fro_on_older_servers(half: Half, older_cluster: Cluster) -> None:
    older_cluster.flush()
    client = half.client("redis+cluster://" + ",".join(f"{host}:{port}" for host, port in older_cluster.addresses))
    line = Line(half, client)
    check(line, line.run_through(move_to_and_fro(older_cluster)), older_cluster)


# --- while the slot is on its way -------------------------------------------------------------------


@pytest.fixture
def moving(half: Half, client: Any, cluster: Cluster) -> Iterator[tuple[Any, SlotMove]]:
    """A producer whose keys have all gone to the target, which does not own the slot yet."""
    producer = half.api.StreamProducer(client, STREAM, "g")
    half.do(producer.push, "before")
    half.do(producer.ensure_group)
    with moving_slot(cluster) as move:
        yield producer, move


def test_commands_and_scripts_ask_the_other_node(half: Half, client: Any, moving: tuple[Any, SlotMove]) -> None:
    assert half.do(client.call, STREAM, "XLEN", STREAM) == 1
    assert half.do(client.call, STREAM, "XADD", STREAM, "*", "data", "1", repeat=Repeat.ONCE)
    assert half.do(half.api.ConsumerGroup(client, STREAM, "g").lag).count == 2
    assert half.do(client.run, "streams/count_range", [STREAM], ["-", "+", 10], Repeat.ONCE)[0] == 2


def test_a_producer_asks_the_other_node(half: Half, moving: tuple[Any, SlotMove]) -> None:
    producer, move = moving
    ids = [half.do(producer.push, n) for n in range(3)]
    assert [row[0].decode() for row in move.ask_target("XRANGE", STREAM, "-", "+")][1:] == ids


def test_a_producer_that_needs_a_script_the_other_node_lacks(half: Half, moving: tuple[Any, SlotMove]) -> None:
    producer, move = moving
    tell(move.target, "SCRIPT", "FLUSH")
    half.do(producer.push, "x")
    assert move.ask_target("XLEN", STREAM) == 2


def test_a_producer_that_waits_for_replicas_asks_the_other_node(half: Half, client: Any, cluster: Cluster) -> None:
    producer = half.api.StreamProducer(client, STREAM, durability="replicated", durability_timeout_ms=1)
    move = SlotMove(cluster, STREAM)
    with pytest.raises(NotDurable):  # there is no replica, but the entry is there
        half.do(producer.push, "before")
    move.begin().move()
    with pytest.raises(NotDurable) as written:
        half.do(producer.push, "during")
    assert [row[0].decode() for row in move.ask_target("XRANGE", STREAM, "-", "+")][1:] == list(written.value.ids)
    move.finish()


@contextmanager
def moving_slot(cluster: Cluster) -> Iterator[SlotMove]:
    """Has all keys on the target, which does not own the slot yet; in the end it does, whatever happened."""
    move = SlotMove(cluster, STREAM).begin().move()
    try:
        yield move
    finally:
        move.finish()


def test_a_consumer_reads_from_the_other_node(half: Half, client: Any, cluster: Cluster) -> None:
    producer = half.api.StreamProducer(client, STREAM)
    half.do(producer.push, "before")
    handled: list[Any] = []
    # It looks for orphans all the time, which must wait until the slot has arrived: reading does not.
    consumer = half.api.StreamConsumer(
        client, STREAM, config(recovery_interval_ms=1), message_handler=lambda message: handled.append(message.data)
    )
    running = half.start(consumer.run)
    eventually(lambda: consumer.metrics().total_acked == 1)
    with moving_slot(cluster):
        half.do(producer.push, "during")
        eventually(lambda: handled == ["before", "during"])
    eventually(lambda: consumer.metrics().total_acked == 2)
    half.do(consumer.stop)
    running.result(30)
    assert handled == ["before", "during"]


def test_a_consumer_stops_in_time_while_it_reads_from_the_other_node(half: Half, client: Any, cluster: Cluster) -> None:
    half.do(half.api.StreamProducer(client, STREAM).push, 1)
    settings = config(block_ms=120_000, shutdown_grace_ms=100)
    consumer = half.api.StreamConsumer(client, STREAM, settings, message_handler=lambda _message: None)
    running = half.start(consumer.run)
    eventually(lambda: consumer.metrics().total_acked == 1)
    with moving_slot(cluster) as move:
        eventually(lambda: b"blocked_clients:1" in tell(move.target, "INFO", "clients"))
        half.do(consumer.stop)
        running.result(30)  # less than the read would take


def test_a_heartbeat_asks_the_other_node(half: Half, client: Any, cluster: Cluster) -> None:
    half.do(half.api.StreamProducer(client, STREAM).push, "long")
    handled: list[Any] = []
    may_end = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.data)
        assert may_end.wait(60)

    settings = config(min_idle_claim_ms=60_000, heartbeat_interval_ms=50)
    consumers = [half.api.StreamConsumer(client, STREAM, settings, message_handler=handle) for _ in range(2)]
    running = [half.start(consumer.run) for consumer in consumers]
    eventually(lambda: handled)
    with moving_slot(cluster) as move:
        for _ in range(3):
            entry_id, holder, _, _ = move.ask_target("XPENDING", STREAM, "g", "-", "+", 10)[0]
            move.ask_target("XCLAIM", STREAM, "g", holder, 0, entry_id, "IDLE", 40_000, "JUSTID")
            # The lease is renewed on the other node.
            eventually(lambda: move.ask_target("XPENDING", STREAM, "g", "-", "+", 10)[0][2] < 20_000)
        may_end.set()
    eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 1)
    for consumer, call in zip(consumers, running, strict=True):
        half.do(consumer.stop)
        call.result(30)
    assert handled == ["long"]
