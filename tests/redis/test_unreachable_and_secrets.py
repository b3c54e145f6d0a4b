"""Servers that cannot be reached or refuse us: an error that says where and what to do, and never a secret."""

from __future__ import annotations

import copy
import logging
import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import ConsumerConfig
from penstock.errors import AuthenticationFailed, ConfigurationError, ConnectionFailed, PermissionDenied, ServerError
from penstock.redis.embedded import EmbeddedServer, free_port
from penstock.testing import FaultProxy
from tests.redis.halves import Half

pytestmark = pytest.mark.usefixtures("default_server")
CANARY = "c4n4ry-s3cret"
USER_CANARY = "c4n4ry-user"


def whole_text(error: BaseException) -> str:
    """Everything that a log of the error could show: its text, its causes and the fields of all of them."""
    shown = ["".join(traceback.format_exception(error)), repr(error)]
    cause: BaseException | None = error
    while cause is not None:
        shown += [repr(cause), repr(cause.args), repr(vars(cause))]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(shown)


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.DEBUG)
    yield caplog
    assert CANARY not in caplog.text


PATIENT_S = 300.0  # whoever waits for so long is not waited for by these tests


# --- unreachable ------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_is_named_with_what_to_check(half: Half) -> None:
    port = free_port()
    client = half.client(host="127.0.0.1", port=port, socket_connect_timeout=PATIENT_S)
    with pytest.raises(ConnectionFailed, match=rf"127\.0\.0\.1:{port}.*check that the server is running"):
        half.do(client.ping)


def test_a_host_that_does_not_exist_is_named(half: Half) -> None:
    client = half.client("redis://no-such-host.invalid:6379", socket_connect_timeout=3)
    with pytest.raises(ConnectionFailed, match=r"no-such-host\.invalid:6379"):
        half.do(client.ping)


def test_a_socket_file_that_does_not_exist_is_named(half: Half) -> None:
    with pytest.raises(ConnectionFailed, match=r"unix:/no/such\.sock"):
        half.do(half.client("unix:///no/such.sock").ping)


def test_a_host_that_swallows_packets_fails_within_the_connect_timeout(half: Half) -> None:
    # A listener whose queue is full drops further SYNs, as a firewall does.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            began = time.monotonic()
            with pytest.raises(ConnectionFailed, match=rf"127\.0\.0\.1:{port} within the connect timeout"):
                half.do(
                    half.client(host="127.0.0.1", port=port, socket_connect_timeout=0.3, socket_timeout=PATIENT_S).ping
                )
            assert time.monotonic() - began > 0.2
        finally:
            for filler in fillers:
                filler.close()


def test_a_server_that_accepts_but_never_answers_fails_within_the_connect_timeout(
    half: Half, fault_proxy: FaultProxy
) -> None:
    fault_proxy.black_hole()
    client = half.client(fault_proxy.url, socket_connect_timeout=0.3, socket_timeout=PATIENT_S)
    with pytest.raises(ConnectionFailed, match=f"{fault_proxy.port} within the connect timeout"):
        half.do(client.ping)


def test_a_first_push_to_an_absent_server_fails_at_once(half: Half) -> None:
    client = half.client(host="127.0.0.1", port=free_port(), socket_connect_timeout=PATIENT_S)
    with pytest.raises(ConnectionFailed, match="check that the server is running"):
        half.do(half.api.StreamProducer(client, "s").push, {"n": 1})


def test_a_server_that_has_too_many_clients_is_named(half: Half, start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0, options={"maxclients": "1"})
    occupied = socket.create_connection(("127.0.0.1", server.port))
    try:
        with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{server.port}"):
            half.do(half.client(host="127.0.0.1", port=server.port).ping)
    finally:
        occupied.close()


# --- refused ----------------------------------------------------------------------------------------


@pytest.fixture
def locked(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server with a password, and a user who may do little."""
    user = ["ann", "on", f">{CANARY}", "~orders*", "+ping", "+get", "+xlen"]
    return start_server(port=0, options={"requirepass": CANARY, "user": user})


@pytest.mark.parametrize(
    "login",
    [
        {"password": f"wrong-{CANARY}"},
        {"username": "ann", "password": f"wrong-{CANARY}"},
        {"username": "bob", "password": CANARY},
    ],
    ids=["password", "user's password", "user"],
)
def test_a_refused_login_is_an_authentication_error_without_the_password(
    half: Half, locked: EmbeddedServer, login: dict[str, str], everything_logged: pytest.LogCaptureFixture
) -> None:
    client = half.client(host="127.0.0.1", port=locked.port, **login)
    with pytest.raises(AuthenticationFailed, match=f"127.0.0.1:{locked.port} rejected the credentials") as refused:
        half.do(client.ping)
    assert CANARY not in whole_text(refused.value)


def test_a_database_that_the_server_does_not_have_is_told_with_the_remedy(
    half: Half, start_server: Callable[..., EmbeddedServer]
) -> None:
    server = start_server(port=0, options={"databases": "2"})
    with pytest.raises(ServerError, match=rf"127.0.0.1:{server.port} does not have this database .*`databases`"):
        half.do(half.client(host="127.0.0.1", port=server.port, db=2).ping)
    member = start_server(port=0, options={"cluster-enabled": "yes"})
    with pytest.raises(ServerError, match=r"does not have this database .*(redis\+cluster://|cluster-databases)"):
        half.do(half.client(host="127.0.0.1", port=member.port, db=1).ping)


@pytest.mark.parametrize("how", ["cluster", "sentinel"])
def test_a_refused_login_is_told_by_cluster_and_sentinel_too(
    half: Half,
    start_server: Callable[..., EmbeddedServer],
    how: str,
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    server = start_server(port=0, options={"requirepass": "right", "cluster-enabled": "yes"})
    place = f"127.0.0.1:{server.port}"
    if how == "cluster":
        client = half.client(f"redis+cluster://:{CANARY}@{place}")
    else:
        client = half.client(f"redis+sentinel://{place}/main", sentinel_password=CANARY)
    with pytest.raises(AuthenticationFailed) as refused:
        half.do(client.ping)
    assert CANARY not in whole_text(refused.value)


def test_a_server_that_is_no_cluster_is_named(half: Half, server: EmbeddedServer) -> None:
    client = half.client(f"redis+cluster://127.0.0.1:{server.port}")
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{server.port}.*[Cc]luster"):
        half.do(client.ping)


def test_a_missing_password_is_an_authentication_error(half: Half, locked: EmbeddedServer) -> None:
    with pytest.raises(AuthenticationFailed, match=r"NOAUTH|Authentication required"):
        half.do(half.client(host="127.0.0.1", port=locked.port).call, "k", "GET", "k")
    with pytest.raises(AuthenticationFailed, match="check the user name and the password"):
        half.do(half.client(host="127.0.0.1", port=locked.port).call, "k", "MSET", *["k", "v"] * 10)


def test_a_password_for_a_server_without_one_is_an_authentication_error(
    half: Half, start_server: Callable[..., EmbeddedServer], everything_logged: pytest.LogCaptureFixture
) -> None:
    server = start_server(port=0)
    client = half.client(host="127.0.0.1", port=server.port, password=CANARY)
    with pytest.raises(AuthenticationFailed) as refused:
        half.do(client.ping)
    assert CANARY not in whole_text(refused.value)


def test_a_missing_right_is_told(half: Half, locked: EmbeddedServer) -> None:
    client = half.client(f"redis://ann:{CANARY}@127.0.0.1:{locked.port}")
    assert half.do(client.ping)
    with pytest.raises(PermissionDenied, match="NOPERM"):
        half.do(client.call, "k", "SET", "k", "v")
    with pytest.raises(PermissionDenied, match="NOPERM"):
        half.do(client.call, "k", "GET", "another")
    with pytest.raises(PermissionDenied):
        half.do(half.api.StreamProducer(client, "orders").push, {"n": 1})


def test_a_consumer_that_is_refused_ends_with_that_error(half: Half, locked: EmbeddedServer) -> None:
    client = half.client(host="127.0.0.1", port=locked.port, password="wrong")
    config = ConsumerConfig(group="g", handle_signals=False)
    consumer = half.api.StreamConsumer(client, "orders", config, message_handler=lambda _message: None)
    with pytest.raises(AuthenticationFailed):
        half.do(consumer.run)


# --- secrets ----------------------------------------------------------------------------------------


def clients_with_secrets(half: Half) -> Iterator[Any]:
    """Yields a client of every kind, each with a password."""
    port = free_port()
    make = half.api.StreamClient
    sentinels = [("127.0.0.1", port)]
    yield make(host="127.0.0.1", port=port, username=USER_CANARY, password=CANARY)
    yield make.from_url(f"redis://{USER_CANARY}:{CANARY}@127.0.0.1:{port}/1?client_name=me")
    yield make.from_url(f"rediss://{USER_CANARY}:{CANARY}@127.0.0.1:{port}/1")
    yield make.from_url(f"redis://127.0.0.1:{port}", password=CANARY)
    yield make.from_url(f"unix://:{CANARY}@/no/such.sock")
    yield make.from_url(f"redis+cluster://:{CANARY}@127.0.0.1:{port}")
    yield make.from_url(f"redis+sentinel://:{CANARY}@127.0.0.1:{port}/main")
    yield make.from_cluster([{"host": "127.0.0.1", "port": port}], password=CANARY)
    yield make.from_sentinel(sentinels, "main", password=CANARY, sentinel_password=CANARY)


def test_no_repr_shows_a_secret(half: Half) -> None:
    for client in clients_with_secrets(half):
        half.owned(client)
        producer = half.api.StreamProducer(client, "{s}")
        consumer = half.api.StreamConsumer(client, "{s}", ConsumerConfig(group="g"), message_handler=print)
        for thing in (client, client.settings, copy.copy(client.settings), producer, consumer, vars(client)):
            assert CANARY not in f"{thing!r} {thing!s}"
        assert USER_CANARY not in repr(client)


def test_no_error_and_no_log_shows_a_secret(half: Half, everything_logged: pytest.LogCaptureFixture) -> None:
    for client in clients_with_secrets(half):
        half.owned(client)
        with pytest.raises(ConnectionFailed) as failed:
            half.do(client.ping)
        assert CANARY not in whole_text(failed.value), client


def test_a_client_that_works_logs_no_secret(
    half: Half, locked: EmbeddedServer, everything_logged: pytest.LogCaptureFixture
) -> None:
    client = half.client(f"redis://:{CANARY}@127.0.0.1:{locked.port}")
    half.do(half.api.StreamProducer(client, "orders").push, {"n": 1})
    config = ConsumerConfig(group="g", block_ms=50, min_idle_claim_ms=200, handle_signals=False)
    consumer = half.api.StreamConsumer(client, "orders", config, message_handler=lambda _message: 1 / 0)
    half.do(consumer.run_once)
    assert half.do(client.capabilities).product in {"Redis", "Valkey"}
    assert "ZeroDivisionError" in everything_logged.text, "the log was captured"


@pytest.mark.parametrize(
    "make",
    [
        lambda api: api.StreamClient.from_url(f"redis://user:{CANARY}/x@host:6379"),
        lambda api: api.StreamClient.from_url(f"redis://user:{CANARY}"),
        lambda api: api.StreamClient.from_url(f"http://user:{CANARY}@host"),
        lambda api: api.StreamClient.from_url(f"redis://host?password={CANARY}"),
        lambda api: api.StreamClient.from_url("redis://host", pasword=CANARY),
        lambda api: api.StreamClient(pasword=CANARY),
        lambda api: api.StreamClient.from_cluster([{"host": "h", "password": CANARY}]),
        lambda api: api.StreamClient.from_sentinel([CANARY], "main"),
    ],
)
def test_no_mistake_in_the_settings_is_answered_with_the_secret(half: Half, make: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make(half.api)
    message = str(refused.value)
    assert CANARY not in message
    assert CANARY not in repr(refused.value.__cause__)
    assert re.search(r"[a-z]{4,}", message), "it says something all the same"
