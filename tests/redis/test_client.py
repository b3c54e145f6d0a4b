"""StreamClient: every parameter has its effect, every kind of URL leads somewhere, and its owner ends it."""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import ConsumerConfig
from penstock.errors import (
    AuthenticationFailed,
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    UnsupportedServer,
)
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from penstock.testing import FaultProxy
from tests.helpers.threads import eventually
from tests.redis.halves import Half, nothing_left_open

pytestmark = pytest.mark.usefixtures("default_server")

SEED_PARAMETERS = {
    "host": "localhost",
    "port": 6379,
    "db": 0,
    "username": None,
    "password": None,
    "prefix": "",
    "max_connections": 1000,
    "pool_timeout": 5,
    "client_name": None,
    "ssl": False,
    "socket_timeout": 30.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "socket_keepalive_options": None,
}


def socket_of(connection: Any) -> Any:
    transport = getattr(connection, "_transport", None)
    return transport.get_extra_info("socket") if transport is not None else connection._socket


# --- parameters -------------------------------------------------------------------------------------


def test_the_parameters_come_in_the_known_order_with_the_known_defaults(half: Half) -> None:
    parameters = inspect.signature(half.api.StreamClient).parameters.values()
    found = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(found.items())[: len(SEED_PARAMETERS)] == list(SEED_PARAMETERS.items())


def test_nothing_is_opened_before_the_first_command(half: Half, fault_proxy: FaultProxy) -> None:
    client = half.client(host="127.0.0.1", port=fault_proxy.port)
    half.api.StreamProducer(client, "s")
    assert fault_proxy.connections == 0
    assert half.do(client.ping) is True
    assert fault_proxy.connections == 1


def test_many_first_commands_share_one_connection(half: Half, fault_proxy: FaultProxy) -> None:
    client = half.client(host="127.0.0.1", port=fault_proxy.port)
    calls = [half.start(client.call, "n", "INCR", "n") for _ in range(50)]
    assert sorted(call.result(30) for call in calls) == list(range(1, 51))
    assert fault_proxy.connections == 1


def test_db_is_the_database(half: Half, server: EmbeddedServer) -> None:
    half.do(half.client(host="127.0.0.1", port=server.port, db=3).call, "k", "SET", "k", "v")
    with redis.Redis(unix_socket_path=server.unix_socket, db=3) as raw:
        assert raw.get("k") == b"v"


def test_username_and_password_log_in(half: Half, start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0, options={"requirepass": "main", "user": ["ann", "on", ">s3cret", "~*", "+@all"]})
    options = {"host": "127.0.0.1", "port": server.port}
    for login, name in (({"password": "main"}, b"default"), ({"username": "ann", "password": "s3cret"}, b"ann")):
        assert half.do(half.client(**options, **login).call, "", "ACL", "WHOAMI") == name


def test_prefix_stands_before_every_key(half: Half, redis_url: str, raw: redis.Redis) -> None:
    client = half.client(redis_url, prefix="shop")
    producer = half.api.StreamProducer(client, "orders", "billing")
    half.do(producer.push, {"n": 1}, dedup_key="once")
    half.do(producer.ensure_group)
    keys = {key.decode() for key in raw.scan_iter()}
    assert "shop_orders" in keys
    assert all(key == "shop_orders" or key.startswith("{shop_orders}:") for key in keys)


def test_client_name_is_what_the_server_lists(half: Half, redis_url: str) -> None:
    client = half.client(redis_url, client_name="checkout-7")
    assert half.do(client.call, "", "CLIENT", "GETNAME") == b"checkout-7"


def test_keepalive_is_on_unless_it_is_switched_off(half: Half, server: EmbeddedServer) -> None:
    for options, expected in (
        ({}, (1, None)),
        ({"socket_keepalive": False}, (0, None)),
        ({"socket_keepalive_options": {socket.TCP_KEEPIDLE: 33}}, (1, 33)),
    ):
        client = half.client(host="127.0.0.1", port=server.port, **options)
        used = socket_of(half.do(client.connection, ""))
        is_on, idle_s = expected
        assert bool(used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == bool(is_on)
        if idle_s is not None:
            assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle_s


def test_max_connections_is_a_limit_and_pool_timeout_the_patience_at_it(half: Half, redis_url: str) -> None:
    client = half.client(redis_url, max_connections=2, pool_timeout=0.1)
    first = half.do(client.dedicated, "")
    second = half.do(client.dedicated, "")
    with pytest.raises(ConnectionFailed, match="max_connections=2"):
        half.do(client.dedicated, "")
    half.do(first.close)
    third = half.do(client.dedicated, "")
    assert second.is_open
    assert third.is_open


def test_a_free_connection_is_waited_for(half: Half, redis_url: str, fault_proxy: FaultProxy) -> None:
    client = half.client(redis_url, max_connections=1, pool_timeout=60)
    first = half.do(client.dedicated, "")
    waiting = half.start(client.ping)
    with pytest.raises(TimeoutError):
        waiting.result(0.1)
    half.do(first.close)
    assert waiting.result(30) is True


# --- URLs -------------------------------------------------------------------------------------------


def test_a_tcp_url_with_options(half: Half, server: EmbeddedServer) -> None:
    url = f"redis://127.0.0.1:{server.port}/2?prefix=p&client_name=me&socket_timeout=7&socket_connect_timeout=3"
    client = half.client(url)
    half.do(client.call, "k", "SET", "k", "v")
    assert half.do(client.call, "", "CLIENT", "GETNAME") == b"me"
    assert client.keys("orders").stream == "p_orders"
    assert (client.settings.socket_timeout_s, client.settings.connect_timeout_s) == (7, 3)
    with redis.Redis(unix_socket_path=server.unix_socket, db=2) as raw:
        assert raw.get("k") == b"v"


def test_a_unix_url(half: Half, server: EmbeddedServer) -> None:
    client = half.client(f"unix://{server.unix_socket}?db=1&prefix=p")
    half.do(client.call, "k", "SET", "k", "v")
    with redis.Redis(unix_socket_path=server.unix_socket, db=1) as raw:
        assert raw.get("k") == b"v"
    assert server.unix_socket in repr(client)


def test_options_win_over_the_url(half: Half, redis_url: str) -> None:
    client = half.client(f"{redis_url}?prefix=url&client_name=url", prefix="mine", client_name="mine", db=1)
    assert half.do(client.call, "", "CLIENT", "GETNAME") == b"mine"
    assert client.keys("s").stream == "mine_s"
    assert client.settings.db == 1


def test_the_user_in_a_url_is_percent_decoded(half: Half, start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0, options={"requirepass": "p@ss/w:rd%"})
    assert half.do(half.client(f"redis://:p%40ss%2Fw%3Ard%25@127.0.0.1:{server.port}").ping)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://localhost", "scheme"),
        ("localhost:6379", "scheme"),
        ("reddis://localhost", "redis://"),
        ("redis://localhost:0", "port"),
        ("redis+sentinel://localhost", "service"),
        ("redis://localhost?pasword=x", "unknown"),
        ("redis://localhost?ssl_ca_certs=/ca.pem", "rediss://"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_with_a_hint(half: Half, url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        half.api.StreamClient.from_url(url)


# --- the embedded server ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["url", "method"])
def test_an_embedded_server_lives_as_long_as_its_client(half: Half, how: str) -> None:
    made = half.api.StreamClient.from_url("embedded://") if how == "url" else half.api.StreamClient.embedded()
    client = half.owned(made)
    place = client.settings.path
    half.do(half.api.StreamProducer(client, "s").push, {"n": 1})
    assert ask(place, "XLEN", "s") == 1
    half.do(client.close)
    assert not Path(place).exists()


def test_an_embedded_server_with_a_directory_keeps_its_data(half: Half, tmp_path: Path) -> None:
    for expected in (1, 2):
        client = half.client(f"embedded://{tmp_path}/data?prefix=p")
        half.do(half.api.StreamProducer(client, "s").push, {"n": 1})
        assert half.do(client.call, "p_s", "XLEN", "p_s") == expected
        half.do(client.close)


def test_a_mistake_in_the_options_leaves_no_embedded_server_behind(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[EmbeddedServer] = []
    start = EmbeddedServer.start
    monkeypatch.setattr(EmbeddedServer, "start", lambda server: started.append(server) or start(server))
    with pytest.raises(ConfigurationError, match="colour"):
        half.api.StreamClient.from_url("embedded://", colour="red")
    assert not any(server.is_running for server in started)


# --- its end ----------------------------------------------------------------------------------------


def test_a_client_is_a_context_manager(half: Half, fault_proxy: FaultProxy) -> None:
    made = half.api.StreamClient(host="127.0.0.1", port=fault_proxy.port)
    opened = half.do(made.__aenter__ if half.name == "async" else made.__enter__)
    assert opened is made
    assert half.do(opened.ping)
    half.do(made.__aexit__ if half.name == "async" else made.__exit__, None, None, None)
    eventually(lambda: fault_proxy.connections == 0)


def test_only_the_owner_closes_the_client(half: Half, redis_url: str) -> None:
    client = half.client(redis_url)
    producer = half.api.StreamProducer(client, "s")
    done = threading.Event()
    config = ConsumerConfig(group="g", block_ms=100, handle_signals=False)
    consumer = half.api.StreamConsumer(client, "s", config, message_handler=lambda _message: done.set())
    half.do(producer.push, {"n": 1})
    running = half.start(consumer.run)
    assert done.wait(30)
    half.do(consumer.stop)
    running.result(30)
    half.do(producer.close)
    half.do(consumer.close)
    assert half.do(client.ping)
    half.do(producer.push, {"n": 2})


def test_after_closing_every_use_says_that_the_client_is_closed(half: Half, redis_url: str) -> None:
    client = half.client(redis_url)
    producer = half.api.StreamProducer(client, "s", "g")
    half.do(producer.push, {"n": 1})
    config = ConsumerConfig(group="g", handle_signals=False)
    consumer = half.api.StreamConsumer(client, "s", config, handler=lambda messages: [m.id for m in messages])
    half.do(client.close)
    half.do(client.close)
    group = half.api.ConsumerGroup(client, "s", "g")
    dead = half.api.DeadLetters(client, "s")
    uses = [client.ping, producer.ensure_group, consumer.run_once, consumer.run, group.lag, dead.count]
    for use in uses:
        with pytest.raises(ClientClosed, match="closed; create a new client"):
            half.do(use)
    with pytest.raises(ClientClosed, match="closed; create a new client"):
        half.do(producer.push, {"n": 2})


def test_a_client_that_is_closed_while_it_connects_leaves_nothing_open(half: Half, fault_proxy: FaultProxy) -> None:
    def story() -> None:
        client = half.client(host="127.0.0.1", port=fault_proxy.port, client_name="late")
        fault_proxy.hold_replies()
        calls = [half.start(client.ping), half.start(client.dedicated, "")]
        fault_proxy.wait_for("CLIENT", 2)
        half.do(client.close)
        fault_proxy.release_replies()
        for call in calls:
            assert isinstance(call.exception(30), ClientClosed)
        eventually(lambda: fault_proxy.connections == 0)

    with nothing_left_open():
        story()


def test_a_consumer_whose_client_is_closed_ends_and_says_why(half: Half, redis_url: str) -> None:
    client = half.client(redis_url)
    config = ConsumerConfig(group="g", block_ms=100, shutdown_grace_ms=100, handle_signals=False)
    begun = threading.Event()
    consumer = half.api.StreamConsumer(client, "s", config, message_handler=lambda _message: begun.set())
    half.do(half.api.StreamProducer(client, "s").push, {"n": 1})
    running = half.start(consumer.run)
    assert begun.wait(30)
    half.do(client.close)
    with pytest.raises(ClientClosed):
        running.result(30)


# --- what the server can do -------------------------------------------------------------------------


@pytest.mark.servers("6.2", "7.0", "9.1")
def test_capabilities_are_asked_of_the_server_itself(
    half: Half, server: EmbeddedServer, fault_proxy: FaultProxy
) -> None:
    client = half.client(fault_proxy.url)
    found = half.do(client.capabilities)
    kind = "Valkey" if found.has("WAITAOF") else "Redis"
    assert found.product == kind
    assert found.version.startswith({"Valkey": "9.1", "Redis": ("6.2", "7.0")}[kind])
    assert (found.is_cluster, found.is_append_only, found.may_evict) == (False, False, False)
    assert (found.fsync, found.eviction_policy) == ("everysec", "noeviction")
    asked = fault_proxy.count("INFO")
    half.do(client.capabilities)
    assert fault_proxy.count("INFO") == asked == 1, "asked once"


def test_capabilities_may_be_asked_where_config_is_forbidden(
    half: Half, start_server: Callable[..., EmbeddedServer]
) -> None:
    server = start_server(port=0, options={"user": ["ann", "on", ">pw", "~*", "+@all", "-config"], "appendonly": "yes"})
    found = half.do(half.client(f"redis://ann:pw@127.0.0.1:{server.port}").capabilities)
    assert found.is_append_only is True
    assert found.fsync is None
    assert found.eviction_policy == "noeviction", "INFO tells it as well"


def test_a_server_that_may_not_be_asked_is_taken_for_the_oldest(
    half: Half, start_server: Callable[..., EmbeddedServer]
) -> None:
    user = ["ann", "on", ">pw", "~*", "+@all", "-config", "-command", "-info"]
    server = start_server(port=0, options={"user": user})
    found = half.do(half.client(f"redis://ann:pw@127.0.0.1:{server.port}").capabilities)
    assert (found.version, found.commands, found.is_append_only) == ("unknown", {"XAUTOCLAIM"}, None)
    with pytest.raises(AuthenticationFailed):
        half.do(half.client(f"redis://ann:wrong@127.0.0.1:{server.port}").capabilities)


def test_a_server_that_is_too_old_is_named(half: Half, start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0, options={"rename-command": ["XAUTOCLAIM", ""]})
    with pytest.raises(UnsupportedServer, match=r"(Redis|Valkey) \S+ is not supported: use 6\.2 or newer"):
        half.do(half.client(host="127.0.0.1", port=server.port).capabilities)
