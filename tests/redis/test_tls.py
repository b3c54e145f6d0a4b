"""TLS to a real server: verified by default, by every way to make a client, down to the heartbeat of a consumer."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock import ConsumerConfig
from penstock.errors import CommandTimeout, ConfigurationError, ConnectionFailed, ConnectionLost
from penstock.redis.embedded import EmbeddedServer, free_port
from penstock.redis.probe import ask
from penstock.testing import FaultProxy, ServerMissing
from penstock.testing.servers import DEFAULT
from tests.helpers.threads import eventually
from tests.redis.halves import Half


@dataclass(frozen=True)
class Authority:
    """A certificate authority of the tests, and the files of those whom it vouches for."""

    ca: trustme.CA
    folder: Path

    @property
    def pem(self) -> str:
        """The file with the certificate that clients must trust."""
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return str(path)

    def vouch(self, name: str, **options: Any) -> tuple[str, str]:
        """Issues a certificate and returns the files of it and of its key."""
        issued = self.ca.issue_cert(name, **options)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        issued.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return str(cert), str(key)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(trustme.CA(), tmp_path_factory.mktemp("tls"))


@dataclass(frozen=True)
class TlsServer:
    server: EmbeddedServer
    port: int

    @property
    def url(self) -> str:
        return f"rediss://localhost:{self.port}"


def started(
    authority: Authority, name: str = "localhost", *, options: dict[str, str] | None = None, **issue: Any
) -> TlsServer:
    """Starts a server that speaks TLS and nothing else, with a certificate for the name."""
    cert, key = authority.vouch(name, **issue)
    port = free_port()
    settings = {
        "tls-port": str(port),
        "tls-cert-file": cert,
        "tls-key-file": key,
        "tls-ca-cert-file": authority.pem,
        "tls-auth-clients": "no",
        **(options or {}),
    }
    server = DEFAULT.server(options=settings)
    try:
        server.start()
    except ConfigurationError as error:
        if "tls-port" not in str(error):
            raise
        raise ServerMissing(f"{DEFAULT.name} was built without TLS: {DEFAULT.remedy}.") from error
    return TlsServer(server, port)


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Iterator[TlsServer]:
    made = started(authority)
    yield made
    made.server.stop()


@pytest.fixture
def start_tls(authority: Authority) -> Iterator[Callable[..., TlsServer]]:
    made: list[TlsServer] = []

    def start(*args: Any, **options: Any) -> TlsServer:
        made.append(started(authority, *args, **options))
        return made[-1]

    yield start
    for tls in made:
        tls.server.stop()


# --- who is trusted ---------------------------------------------------------------------------------


def test_a_server_vouched_for_by_the_given_authority_is_trusted(
    half: Half, tls: TlsServer, authority: Authority
) -> None:
    assert half.do(half.client(f"{tls.url}?ssl_ca_certs={authority.pem}").ping)
    assert half.do(half.client(tls.url, ssl_ca_certs=authority.pem).ping)
    options = {"host": "localhost", "port": tls.port, "ssl": True}
    assert half.do(half.client(**options, ssl_ca_certs=authority.pem).ping)
    assert half.do(half.client(**options, ssl_ca_data=authority.ca.cert_pem.bytes().decode()).ping)


def test_a_server_of_an_unknown_authority_is_refused_by_default(half: Half, tls: TlsServer) -> None:
    makers: list[dict[str, Any]] = [{"url": tls.url}, {"host": "localhost", "port": tls.port, "ssl": True}]
    for options in makers:
        with pytest.raises(ConnectionFailed, match="certificate verify failed"):
            half.do(half.client(**options).ping)


def test_another_authority_does_not_help(half: Half, tls: TlsServer, tmp_path: Path) -> None:
    other = Authority(trustme.CA(), tmp_path)
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        half.do(half.client(tls.url, ssl_ca_certs=other.pem).ping)


def test_a_certificate_for_another_host_is_refused_by_default(
    half: Half, start_tls: Callable[..., TlsServer], authority: Authority
) -> None:
    tls = start_tls("elsewhere.example")
    with pytest.raises(ConnectionFailed, match=r"[Hh]ostname mismatch.*localhost"):
        half.do(half.client(tls.url, ssl_ca_certs=authority.pem).ping)
    assert half.do(half.client(f"{tls.url}?ssl_check_hostname=no&ssl_ca_certs={authority.pem}").ping)


def test_an_expired_certificate_is_refused(
    half: Half, start_tls: Callable[..., TlsServer], authority: Authority
) -> None:
    tls = start_tls(not_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(ConnectionFailed, match="expired"):
        half.do(half.client(tls.url, ssl_ca_certs=authority.pem).ping)


def test_verification_can_be_switched_off_by_name(half: Half, tls: TlsServer) -> None:
    assert half.do(half.client(tls.url, ssl_cert_reqs="none", ssl_check_hostname=False).ping)
    assert half.do(half.client(tls.url, ssl_cert_reqs="none").ping)


def test_a_file_that_does_not_exist_is_told(half: Half, tls: TlsServer) -> None:
    with pytest.raises(ConnectionFailed, match="No such file"):
        half.do(half.client(tls.url, ssl_ca_certs="/no/such/ca.pem").ping)


def test_a_client_certificate_is_shown_when_the_server_wants_one(
    half: Half, start_tls: Callable[..., TlsServer], authority: Authority
) -> None:
    tls = start_tls(options={"tls-auth-clients": "yes"})
    cert, key = authority.vouch("a-client")
    with pytest.raises(ConnectionFailed):
        half.do(half.client(tls.url, ssl_ca_certs=authority.pem).ping)
    client = half.client(tls.url, ssl_ca_certs=authority.pem, ssl_certfile=cert, ssl_keyfile=key)
    assert half.do(client.ping)


def test_tls_and_plain_text_that_meet_are_told_apart_in_time(
    half: Half, tls: TlsServer, start_server: Callable[..., EmbeddedServer]
) -> None:
    plain = start_server(port=0)
    patience = {"socket_connect_timeout": 1, "socket_timeout": 300}  # whoever waits for so long is not waited for
    with pytest.raises(ConnectionFailed, match=f"localhost:{plain.port}.*TLS"):
        half.do(half.client(f"rediss://localhost:{plain.port}", **patience).ping)
    with pytest.raises(ConnectionFailed, match=f"localhost:{tls.port}"):
        half.do(half.client(f"redis://localhost:{tls.port}", **patience).ping)


@pytest.mark.parametrize("make", ["constructor", "url"])
def test_options_of_tls_without_tls_are_refused(half: Half, make: str) -> None:
    place = {"url": "redis://localhost"} if make == "url" else {"host": "localhost"}
    with pytest.raises(ConfigurationError, match=r"ssl_ca_certs.*ssl=True.*rediss://"):
        half.client(**place, ssl_ca_certs="/ca.pem")


# --- the lanes over TLS -----------------------------------------------------------------------------


def connect(half: Half, tls: TlsServer, authority: Authority, port: int | None = None, **options: Any) -> Any:
    client = half.client(f"rediss://localhost:{port or tls.port}", ssl_ca_certs=authority.pem, **options)
    return half.do(client.dedicated, "")


def test_five_megabytes_travel_in_both_directions(half: Half, tls: TlsServer, authority: Authority) -> None:
    connection = connect(half, tls, authority)
    body = bytes(range(256)) * (5 * 1024 * 1024 // 256)
    assert half.do(connection.call, "ECHO", body) == body
    calls = [half.start(connection.call, "ECHO", n) for n in range(100)]
    assert [call.result(30) for call in calls] == [b"%d" % n for n in range(100)]


def test_abort_ends_a_wait_at_once(half: Half, tls: TlsServer, authority: Authority) -> None:
    connection = connect(half, tls, authority)
    ask(tls.server.unix_socket, "DEL", "list")
    waiting = half.start(connection.call, "BLPOP", "list", 60)
    eventually(lambda: b"blocked_clients:1" in ask(tls.server.unix_socket, "INFO", "clients"))
    half.do(connection.abort)
    with pytest.raises(ConnectionLost):
        waiting.result(30)
    eventually(lambda: b"blocked_clients:0" in ask(tls.server.unix_socket, "INFO", "clients"))


def test_a_silent_and_a_broken_line_are_noticed(half: Half, tls: TlsServer, authority: Authority) -> None:
    with FaultProxy(("127.0.0.1", tls.port)) as proxy:
        mute = connect(half, tls, authority, proxy.port)
        broken = connect(half, tls, authority, proxy.port)
        waiting = half.start(broken.call, "BLPOP", "list", 60)
        eventually(lambda: b"blocked_clients:1" in ask(tls.server.unix_socket, "INFO", "clients"))
        proxy.black_hole()
        with pytest.raises(CommandTimeout):
            half.do(mute.call, "PING", timeout_s=0.2)
        proxy.reset_all()
        with pytest.raises(ConnectionLost):
            waiting.result(30)
        with pytest.raises(ConnectionFailed):
            half.do(broken.call, "PING")


# --- a queue over TLS -------------------------------------------------------------------------------


def test_a_consumer_and_its_heartbeat_speak_tls(half: Half, tls: TlsServer, authority: Authority) -> None:
    client = half.client(tls.url, ssl_ca_certs=authority.pem)
    stream = f"tls-{half.name}"
    half.do(half.api.StreamProducer(client, stream).push, {"n": 1})
    handled: list[Any] = []
    release = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.data)
        assert release.wait(30)

    # The lease outlasts the test, however slow the machine is: heartbeats are counted where they arrive.
    config = ConsumerConfig(
        group="g", block_ms=100, min_idle_claim_ms=60_000, heartbeat_interval_ms=50, handle_signals=False
    )
    consumers = [half.api.StreamConsumer(client, stream, config, message_handler=handle) for _ in range(2)]
    running = [half.start(consumer.run) for consumer in consumers]
    try:
        eventually(lambda: handled)
        before = _renewals(tls)
        eventually(lambda: _renewals(tls) >= before + 3)
    finally:
        release.set()
    eventually(lambda: sum(consumer.metrics().total_acked for consumer in consumers) == 1)
    for consumer in consumers:
        half.do(consumer.stop)
    for call in running:
        call.result(30)
    assert handled == [{"n": 1}]
    assert ask(tls.server.unix_socket, "XPENDING", stream, "g")[0] == 0


def _renewals(tls: TlsServer) -> int:
    found = re.search(rb"cmdstat_xclaim:calls=([0-9]+)", ask(tls.server.unix_socket, "INFO", "commandstats"))
    return int(found[1]) if found else 0


def test_a_cluster_speaks_tls(half: Half, start_tls: Callable[..., TlsServer], authority: Authority) -> None:
    tls = start_tls("127.0.0.1", options={"cluster-enabled": "yes", "tls-cluster": "yes"})
    ask(tls.server.unix_socket, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    eventually(lambda: b"cluster_state:ok" in ask(tls.server.unix_socket, "CLUSTER", "INFO"))
    place = f"rediss+cluster://127.0.0.1:{tls.port}"
    client = half.client(f"{place}?ssl_ca_certs={authority.pem}")
    half.do(half.api.StreamProducer(client, "{s}").push, {"n": 1})
    assert ask(tls.server.unix_socket, "XLEN", "{s}") == 1
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        half.do(half.client(place).ping)
    node = [{"host": "127.0.0.1", "port": tls.port}]
    made = half.api.StreamClient.from_cluster(node, ssl=True, ssl_ca_certs=authority.pem)
    assert half.do(half.owned(made).ping)
