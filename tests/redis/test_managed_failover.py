"""A failover behind one address, as managed services do it: the old master becomes a replica and hangs up on nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import ConsumerConfig
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from penstock.redis.retry import Repeat
from penstock.testing import FaultProxy
from tests.helpers.threads import eventually
from tests.redis.halves import Half

LEASE_MS = 6_000


class Pair:
    """Two servers behind one address, one of them the master."""

    def __init__(self, master: EmbeddedServer, replica: EmbeddedServer, proxy: FaultProxy) -> None:
        self.master, self.replica, self.proxy = master, replica, proxy

    def fail_over(self) -> None:
        """Makes the replica the master; the address leads to it, but connections stay where they are."""
        self.wait_until_equal()
        self.proxy._target = self.replica.unix_socket
        tell(self.replica, "REPLICAOF", "NO", "ONE")
        tell(self.master, "REPLICAOF", "127.0.0.1", self.replica.port)
        self.master, self.replica = self.replica, self.master

    def wait_until_equal(self) -> None:
        eventually(lambda: _offset(self.master, b"master_repl_offset") == _offset(self.replica, b"slave_repl_offset"))


def tell(server: EmbeddedServer, *command: Any) -> Any:
    return ask(server.unix_socket, *command)


def _offset(server: EmbeddedServer, name: bytes) -> bytes:
    lines = dict(line.split(b":", 1) for line in tell(server, "INFO", "replication").split(b"\r\n") if b":" in line)
    return bytes(lines.get(name, b""))


@pytest.fixture
def pair(start_server: Callable[..., EmbeddedServer]) -> Iterator[Pair]:
    quick = {"repl-diskless-sync-delay": "0"}
    master = start_server(port=0, options=quick)
    replica = start_server(port=0, options={**quick, "replicaof": ["127.0.0.1", str(master.port)]})
    eventually(lambda: b"master_link_status:up" in tell(replica, "INFO", "replication"))
    with FaultProxy(master.unix_socket) as proxy:
        yield Pair(master, replica, proxy)


@pytest.mark.parametrize("repeat", list(Repeat))
def test_a_command_finds_the_new_master(half: Half, pair: Pair, repeat: Repeat) -> None:
    client = half.client(pair.proxy.url)
    assert half.do(client.call, "n", "INCR", "n", repeat=repeat) == 1
    pair.fail_over()
    assert half.do(client.call, "n", "INCR", "n", repeat=repeat) == 2
    assert tell(pair.master, "GET", "n") == b"2"


@pytest.mark.parametrize("durability", ["fast", "replicated"])
def test_a_producer_finds_the_new_master(half: Half, pair: Pair, durability: Any) -> None:
    producer = half.api.StreamProducer(half.client(pair.proxy.url), "s", durability=durability)
    half.do(producer.push, 1)
    pair.fail_over()
    eventually(lambda: b"connected_slaves:1" in tell(pair.master, "INFO", "replication"))
    half.do(producer.push, 2)
    assert tell(pair.master, "XLEN", "s") == 2


def test_a_consumer_and_its_heartbeat_find_the_new_master(half: Half, pair: Pair) -> None:
    client = half.client(pair.proxy.url)
    producer = half.api.StreamProducer(client, "s")
    handled: list[Any] = []
    may_end = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.data)
        if message.data == "long":
            assert may_end.wait(60)

    config = ConsumerConfig(group="g", block_ms=20_000, min_idle_claim_ms=LEASE_MS, handle_signals=False)
    events: list[Any] = []
    consumer = half.api.StreamConsumer(client, "s", config, message_handler=handle, on_event=events.append)
    half.do(producer.push, "long")
    running = half.start(consumer.run)
    eventually(lambda: handled == ["long"])
    pair.fail_over()
    half.do(producer.push, "short")
    eventually(lambda: handled == ["long", "short"])
    eventually(lambda: _idle_ms(pair.master) > LEASE_MS / 6)
    eventually(lambda: _idle_ms(pair.master) < LEASE_MS / 6)
    may_end.set()
    eventually(lambda: consumer.metrics().total_acked == 2)
    half.do(consumer.stop)
    running.result(30)
    assert handled == ["long", "short"]
    assert "group_lost" not in [event.name for event in events]


def _idle_ms(server: EmbeddedServer) -> int:
    rows = tell(server, "XPENDING", "s", "g", "-", "+", 10)
    return int(rows[0][2]) if rows else 0
