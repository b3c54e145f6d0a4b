"""Sentinel: the master is found, and found again after a failover, by producers, consumers and their heartbeats."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import ConsumerConfig
from penstock.errors import ConfigurationError, ConnectionFailed, NotDurable
from penstock.redis.embedded import free_port
from penstock.redis.probe import ask
from penstock.redis.retry import Repeat
from penstock.testing import FaultProxy
from tests.helpers.threads import eventually
from tests.redis.halves import Half, nothing_left_open
from tests.redis.patient_queue import goes_on
from tests.redis.sentinels import SERVICE, SentinelGroup, told

LEASE_MS = 800


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A group shared by the tests that change nothing about it."""
    with SentinelGroup(tmp_path_factory.mktemp("sentinels"), 2) as group:
        yield group


@pytest.fixture
def own_group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SentinelGroup]:
    """A group of the test's own, with as many Sentinels as it is parametrised with."""
    with SentinelGroup(tmp_path, getattr(request, "param", 1)) as group:
        yield group


def config(**settings: Any) -> ConsumerConfig:
    quick = {"block_ms": 100, "min_idle_claim_ms": LEASE_MS, "handle_signals": False}
    return ConsumerConfig(group="g", **{**quick, **settings})


def test_the_master_is_found(half: Half, group: SentinelGroup) -> None:
    make = half.api.StreamClient
    clients = [
        half.client(group.url),
        half.client(f"{group.url}/0?prefix=p&client_name=me"),
        half.owned(make.from_sentinel(group.sentinels, SERVICE)),
        half.owned(make.from_sentinel([{"host": h, "port": p} for h, p in group.sentinels], SERVICE, db=0)),
    ]
    for client in clients:
        assert half.do(client.call, "", "INFO", "replication").startswith(b"# Replication\r\nrole:master")
        assert not client.is_cluster
    assert half.do(clients[1].call, "", "CLIENT", "GETNAME") == b"me"


def test_an_operator_sees_how_long_a_dead_master_stays(half: Half, group: SentinelGroup, redis_url: str) -> None:
    ops = importlib.import_module(f"{half.api.__name__}.ops")
    assert half.do(ops.Inspector(half.client(group.url)).servers.failover_ms) == 2_000
    assert half.do(ops.Inspector(half.client(redis_url)).servers.failover_ms) is None


def test_the_sentinels_are_not_asked_for_every_command(half: Half, group: SentinelGroup) -> None:
    with FaultProxy(group.sentinels[0]) as proxy:
        client = half.client(f"redis+sentinel://127.0.0.1:{proxy.port}/{SERVICE}")
        for _ in range(500):
            half.do(client.ping)
        assert 0 < proxy.count("SENTINEL") < 100, "two a second"


def test_clients_of_one_process_ask_together_and_only_as_long_as_they_are_connected(
    half: Half, group: SentinelGroup
) -> None:
    with FaultProxy(group.sentinels[0]) as proxy:
        clients = [half.client(f"redis+sentinel://127.0.0.1:{proxy.port}/{SERVICE}/{db}") for db in range(5)]
        for client in clients:
            assert half.do(client.ping)
        assert proxy.connections == 1
        for client in clients:
            half.do(client.close)
        eventually(lambda: proxy.connections == 0)
        assert half.do(half.client(f"redis+sentinel://127.0.0.1:{proxy.port}/{SERVICE}").ping), "and then again"


def test_a_sentinel_that_is_away_does_not_matter(half: Half, group: SentinelGroup) -> None:
    sentinels = [("127.0.0.1", free_port()), *group.sentinels[:1]]
    assert half.do(half.owned(half.api.StreamClient.from_sentinel(sentinels, SERVICE)).ping)


@pytest.mark.parametrize("own_group", [2], indirect=True, ids=["two sentinels"])
def test_many_who_look_for_the_master_at_once_leave_nothing_open(half: Half, own_group: SentinelGroup) -> None:
    # Sentinels that answered change places with the first, which does not know: whoever loses count leaves one open.
    told(own_group.sentinels[0], "SENTINEL", "REMOVE", SERVICE)

    def story() -> None:
        client = half.client(own_group.url)
        for _ in range(3):
            assert all(ping.result(30) for ping in [half.start(client.ping) for _ in range(8)])
            half.do(client.refresh)
        half.do(client.close)

    with nothing_left_open():
        story()


@pytest.mark.parametrize("own_group", [2], indirect=True, ids=["two sentinels"])
def test_a_sentinel_that_does_not_know_the_service_does_not_matter(half: Half, own_group: SentinelGroup) -> None:
    told(own_group.sentinels[0], "SENTINEL", "REMOVE", SERVICE)
    client = half.client(own_group.url)
    for _ in range(3):
        assert half.do(client.ping)
        half.do(client.refresh)


def test_sentinels_that_are_all_away_are_named(half: Half) -> None:
    port = free_port()
    client = half.client(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}")
    with pytest.raises(ConnectionFailed, match=rf"no Sentinel at 127\.0\.0\.1:{port}") as failed:
        half.do(client.ping)
    assert "redis.client" not in str(failed.value)
    assert "ConnectionPool" not in str(failed.value)


def test_a_service_that_nobody_knows_is_told(half: Half, group: SentinelGroup) -> None:
    client = half.owned(half.api.StreamClient.from_sentinel(group.sentinels, "nobody"))
    with pytest.raises(ConnectionFailed, match="the name is correct"):
        half.do(client.ping)


@pytest.mark.parametrize(("sentinels", "service"), [([], SERVICE), ([("h",)], SERVICE), ([("h", 1)], "")])
def test_sentinels_and_service_are_checked(half: Half, sentinels: list[Any], service: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sentinels|service_name"):
        half.api.StreamClient.from_sentinel(sentinels, service)


# --- failover ---------------------------------------------------------------------------------------


class Line:
    """A producer and a consumer at work."""

    def __init__(self, half: Half, client: Any, stream: str) -> None:
        self.half, self.stream = half, stream
        self.producer = half.api.StreamProducer(client, stream)
        self.group = half.api.ConsumerGroup(client, stream, "g")
        self.handled: list[Any] = []
        self.consumer = half.api.StreamConsumer(
            client, stream, config(), message_handler=lambda message: self.handled.append(message.data)
        )

    def run_through(self, fail_over: Any, own_group: SentinelGroup) -> None:
        """Publishes and consumes before, during and after the failover; no push may raise."""
        is_over = threading.Event()
        failures: list[BaseException] = []
        consuming = self.half.start(self.consumer.run)

        def publish() -> None:
            number = 0
            while not is_over.is_set() and not failures:
                try:
                    self.half.do(self.producer.push, number)
                except BaseException as error:  # looked at below
                    failures.append(error)
                number += 1

        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        eventually(lambda: len(self.handled) > 20)
        old_master = own_group.master().unix_socket
        fail_over()
        # Far more than had been under way when the master changed, and in the new one: the old may live on for a while.
        eventually(lambda: own_group.master().unix_socket != old_master)
        before = _length(own_group, self.stream)
        eventually(lambda: failures or consuming.done() or _length(own_group, self.stream) > before + 200)
        is_over.set()
        publishing.join(30)
        assert failures == []
        self.half.do(self.producer.push, "last")
        eventually(lambda: consuming.done() or "last" in self.handled)
        # Acknowledgements that went down with the old master are made up for.
        eventually(lambda: consuming.done() or self.half.do(self.group.stats).group_pel_size == 0)
        self.half.do(self.consumer.stop)
        consuming.result(30)


def _length(own_group: SentinelGroup, stream: str) -> int:
    reply = told(own_group.master().unix_socket, "XLEN", stream)
    return reply if isinstance(reply, int) else 0


def test_a_failover_while_the_master_lives(half: Half, own_group: SentinelGroup) -> None:
    line = Line(half, half.client(own_group.url), "s")
    line.run_through(own_group.fail_over, own_group)


@pytest.mark.parametrize("own_group", [3], indirect=True, ids=["three sentinels"])
def test_a_failover_after_the_death_of_the_master(half: Half, own_group: SentinelGroup) -> None:
    line = Line(half, half.client(own_group.url), "s")
    line.run_through(lambda: own_group.master().kill(), own_group)


def test_a_client_goes_on_after_a_failover_and_leaves_nothing_open(half: Half, own_group: SentinelGroup) -> None:
    def story() -> None:
        client = half.client(own_group.url)
        assert half.do(client.call, "n", "INCR", "n", repeat=Repeat.ONCE) == 1
        eventually(lambda: all(told(server.unix_socket, "GET", "n") == b"1" for server in own_group.servers))
        broken = half.do(client.connection, "n")
        own_group.fail_over()
        eventually(lambda: _is_noticed(half, broken))
        assert half.do(client.call, "n", "INCR", "n", repeat=Repeat.ONCE) == 2
        assert told(own_group.master().unix_socket, "GET", "n") == b"2"
        half.do(client.close)

    with nothing_left_open():
        story()


def test_a_producer_leaves_a_master_that_was_replaced_and_does_not_know_it(
    half: Half, own_group: SentinelGroup
) -> None:
    client = half.client(own_group.url)
    durable = {"durability": "replicated", "durability_timeout_ms": 100}
    producer = half.api.StreamProducer(client, "s", **durable)
    with suppress(NotDurable):  # on a busy machine
        half.do(producer.push, "before")
    stale = own_group.master()
    eventually(lambda: ask(own_group.sentinels[0], "SENTINEL", "FAILOVER", SERVICE) == b"OK")
    eventually(lambda: own_group.master() is not stale)
    # The old master is told some eight seconds later; until then it takes every write and has no replica.
    before, pushed = _length(own_group, "s"), 0
    while _length(own_group, "s") < before + 2:
        with suppress(NotDurable):
            half.do(producer.push, pushed)
        pushed += 1
    assert pushed <= 3, "one to find out, and those behind it went to the new master"


def _is_noticed(half: Half, connection: Any) -> bool:
    try:
        half.do(connection.call, "PING")
    except Exception:  # hung up on, as was waited for
        return True
    return not connection.is_open


def test_a_lease_survives_a_failover(half: Half, own_group: SentinelGroup) -> None:
    client = half.client(own_group.url)
    stream = "s"
    half.do(half.api.StreamProducer(client, stream).push, "long")
    handled: list[Any] = []
    may_end = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.data)
        assert may_end.wait(60)

    consumer = half.api.StreamConsumer(client, stream, config(), message_handler=handle)
    running = half.start(consumer.run)
    eventually(lambda: handled)
    eventually(lambda: all(_pending(server.unix_socket, stream) for server in own_group.servers))
    own_group.fail_over()
    renewed_on = own_group.master().unix_socket
    # Renewed again and again by the heartbeat, which has found the new master: young after having been old.
    eventually(lambda: _idle_ms(renewed_on, stream) > LEASE_MS / 8)
    eventually(lambda: _idle_ms(renewed_on, stream) < LEASE_MS / 8)
    may_end.set()
    eventually(lambda: not _pending(renewed_on, stream))
    half.do(consumer.stop)
    running.result(30)


def _pending(address: Any, stream: str) -> list[Any]:
    reply: Any = ask(address, "XPENDING", stream, "g", "-", "+", 10)
    return [] if isinstance(reply, Exception) else reply


def _idle_ms(address: Any, stream: str) -> int:
    rows = _pending(address, stream)
    return int(rows[0][2]) if rows else 0


def test_who_rests_between_two_tries_goes_on_as_soon_as_another_server_is_the_master(
    half: Half, own_group: SentinelGroup
) -> None:
    goes_on(half, own_group.url, "orders", lambda: own_group.master().kill())
