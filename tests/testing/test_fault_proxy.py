from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask, connect
from penstock.testing import FaultProxy
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.fixture
def client(fault_proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client through the proxy that never tries twice. (Its `incr` is an INCRBY on the wire.)"""
    with redis.Redis(port=fault_proxy.port, socket_timeout=30, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_without_faults_everything_passes(client: redis.Redis, fault_proxy: FaultProxy) -> None:
    big = b"x" * 3_000_000
    client.set("big", big)
    assert client.get("big") == big
    with client.pipeline(transaction=True) as pipe:
        for _ in range(1000):
            pipe.incr("n")
        assert pipe.execute()[-1] == 1000
    assert fault_proxy.count("INCRBY") == 1000
    assert fault_proxy.count("multi") == 1


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_lost_reply_means_executed_but_unknown(
    ending: str, client: redis.Redis, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    fault = fault_proxy.drop_reply("xadd", nth=2, ending=ending)
    client.xadd("s", {"n": 1})
    assert not fault.has_happened
    with pytest.raises(redis.ConnectionError):
        client.xadd("s", {"n": 2})
    assert fault.wait()
    assert raw.xlen("s") == 2
    client.xadd("s", {"n": 3})
    assert raw.xlen("s") == 3


def test_half_of_a_reply_arrives_before_the_connection_ends(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    raw.set("text", "0123456789")
    fault_proxy.cut_reply("GET")
    with socket.create_connection(("127.0.0.1", fault_proxy.port), timeout=30) as link:
        link.sendall(b"*2\r\n$3\r\nGET\r\n$4\r\ntext\r\n")
        received = b"".join(iter(lambda: link.recv(100), b""))
    assert received == b"$10\r\n0123456789\r\n"[:8]


def test_a_lost_reply_may_leave_the_connection_open_and_mute(
    client: redis.Redis, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    client.connection_pool.connection_kwargs["socket_timeout"] = 0.2
    client.close()
    fault_proxy.drop_reply("INCRBY", ending="black_hole")
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert raw.get("n") == b"1"
    assert client.incr("n") == 2


def test_a_lost_request_is_never_executed(client: redis.Redis, fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    fault = fault_proxy.drop_request("INCRBY")
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert fault.has_happened
    assert raw.get("n") is None


def test_a_late_request_is_executed_in_its_order_even_if_its_sender_is_gone(
    fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    late = fault_proxy.late_request("INCR", 0.2)
    with connect(("127.0.0.1", fault_proxy.port), 2.0) as connection:
        connection.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n*3\r\n$6\r\nAPPEND\r\n$1\r\nn\r\n$1\r\n0\r\n")
        assert fault_proxy.wait_for("INCR")
    assert raw.get("n") is None
    assert late.wait()
    eventually(lambda: raw.get("n") == b"10", "both were executed, in their order")


def test_in_a_pipeline_the_replies_before_the_lost_one_arrive(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    fault_proxy.drop_reply("INCR", nth=3)
    with connect(("127.0.0.1", fault_proxy.port), 2.0) as connection:
        connection.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * 5)
        received = b""
        while more := connection.recv(100):
            received += more
    assert received == b":1\r\n:2\r\n"
    assert raw.get("n") == b"5"


def test_a_fault_may_wait_for_certain_words(client: redis.Redis, fault_proxy: FaultProxy) -> None:
    fault = fault_proxy.drop_reply("SET", containing=b"orders")
    client.set("invoices", 1)
    assert not fault.has_happened
    with pytest.raises(redis.ConnectionError):
        client.set("{orders}:n", 1)


def test_the_reply_to_a_blocked_command_can_be_lost(
    client: redis.Redis, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    raw.xgroup_create("s", "g", mkstream=True)
    fault = fault_proxy.drop_reply("XREADGROUP")
    with connect(("127.0.0.1", fault_proxy.port), 2.0) as connection:
        words = b"XREADGROUP GROUP g c BLOCK 0 STREAMS s >".split()
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        assert fault_proxy.wait_for("XREADGROUP")
        raw.xadd("s", {"n": 1})
        assert connection.recv(100) == b""
    assert fault.has_happened
    assert raw.xpending("s", "g")["pending"] == 1


def test_replies_are_late_by_the_delay(client: redis.Redis, fault_proxy: FaultProxy) -> None:
    client.ping()
    fault_proxy.delay_replies(0.5)
    started = time.monotonic()
    with client.pipeline(transaction=False) as pipe:
        for _ in range(200):
            pipe.incr("n")
        # All at once: one after the other they would outlast the patience of the client.
        assert pipe.execute() == list(range(1, 201))
    assert time.monotonic() - started >= 0.5
    fault_proxy.delay_replies(600)
    fault_proxy.delay_replies(0)
    client.ping()


def test_replies_are_held_back_until_they_are_let_go(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    with connect(("127.0.0.1", fault_proxy.port), 30) as waiting:
        fault_proxy.hold_replies()
        waiting.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * 2)
        eventually(lambda: raw.get("n") == b"2", "both were executed")
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(100)
        waiting.settimeout(30)
        fault_proxy.release_replies()
        assert waiting.recv(4) + waiting.recv(4) == b":1\r\n:2\r\n"


def test_replies_keep_their_order_when_the_delay_ends(fault_proxy: FaultProxy) -> None:
    with connect(("127.0.0.1", fault_proxy.port), 10) as connection:
        fault_proxy.delay_replies(0.2)
        connection.sendall(b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\n")
        assert fault_proxy.wait_for("ECHO")
        fault_proxy.heal()
        connection.sendall(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$4\r\n0.05\r\n")
        assert fault_proxy.wait_for("BLPOP")
        fault_proxy._switch(lambda: time.sleep(0.4))  # both replies are due when the proxy goes on
        assert _received(connection, 12) == b"$1\r\na\r\n*-1\r\n"


def _received(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        received += connection.recv(100)
    return received


def test_a_black_hole_swallows_old_and_new_connections_until_it_is_healed(
    fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    with connect(("127.0.0.1", fault_proxy.port), 30) as old:
        old.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert old.recv(100) == b"+PONG\r\n"
        fault_proxy.black_hole()
        old.settimeout(0.2)
        old.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n")
        with pytest.raises(TimeoutError):
            old.recv(100)
    with pytest.raises(TimeoutError):
        ask(("127.0.0.1", fault_proxy.port), "PING", timeout_s=0.2)
    assert raw.get("n") is None
    fault_proxy.heal()
    assert ask(("127.0.0.1", fault_proxy.port), "PING") == b"PONG"


def test_a_reset_hits_every_open_connection(fault_proxy: FaultProxy) -> None:
    address = ("127.0.0.1", fault_proxy.port)
    with connect(address, 2.0) as one, connect(address, 2.0) as two:
        for connection in (one, two):
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"
        assert fault_proxy.connections == 2
        fault_proxy.reset_all()
        for connection in (one, two):
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
    assert ask(address, "PING") == b"PONG"


def test_new_connections_are_refused_while_old_ones_live(fault_proxy: FaultProxy) -> None:
    address = ("127.0.0.1", fault_proxy.port)
    with connect(address, 2.0) as old:
        old.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert old.recv(100) == b"+PONG\r\n"
        fault_proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            ask(address, "PING")
        old.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert old.recv(100) == b"+PONG\r\n"
    fault_proxy.heal()
    assert ask(address, "PING") == b"PONG"


def test_healing_disarms_what_has_not_happened(client: redis.Redis, fault_proxy: FaultProxy) -> None:
    fault = fault_proxy.drop_reply("INCRBY")
    fault_proxy.heal()
    assert client.incr("n") == 1
    assert not fault.has_happened


def test_inline_commands_and_subscriptions_pass_untouched(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    with connect(("127.0.0.1", fault_proxy.port), 2.0) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"
    with redis.Redis(port=fault_proxy.port) as client, client.pubsub() as subscription:
        subscription.subscribe("a", "b")
        kinds = [subscription.get_message(timeout=30)["type"] for _ in "ab"]
        raw.publish("b", "hello")
        message = subscription.get_message(timeout=30)
    assert kinds == ["subscribe", "subscribe"]
    assert message["data"] == b"hello"


def test_a_server_that_is_gone_closes_the_connection(
    start_server: Callable[..., EmbeddedServer],
) -> None:
    server = start_server()
    with FaultProxy(server.unix_socket) as proxy:
        address = ("127.0.0.1", proxy.port)
        with connect(address, 2.0) as connection:
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"
            server.kill()
            assert connection.recv(100) == b""
        with pytest.raises(ConnectionError):
            ask(address, "PING")


async def test_an_async_client_shares_its_loop_with_nothing_of_the_proxy(fault_proxy: FaultProxy) -> None:
    async with redis.asyncio.Redis(port=fault_proxy.port, retry=None) as client:
        results = await asyncio.gather(*(client.incr("n") for _ in range(50)))
        assert sorted(results) == list(range(1, 51))
    assert fault_proxy.wait_for("INCRBY", 50)


def test_a_tcp_server_can_be_the_target(server: EmbeddedServer) -> None:
    assert server.port is not None
    with FaultProxy(("127.0.0.1", server.port)) as proxy, redis.Redis.from_url(proxy.url) as client:
        assert client.ping()
