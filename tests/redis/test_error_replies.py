"""Every error reply that a real server of each version gives becomes the right error of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock import errors
from penstock.redis.embedded import EmbeddedServer, free_port
from penstock.redis.translate import Redirected, ScriptMissing
from penstock.testing import TEST_SERVERS, Cluster, FaultProxy, ServerKind
from tests.helpers.threads import eventually
from tests.redis.halves import Half, SyncHalf

pytestmark = pytest.mark.every_server

NO_SHA = "0" * 40
Command = tuple[Any, ...]


@pytest.fixture
def connection(server: EmbeddedServer) -> Any:
    half = SyncHalf()
    assert server.port is not None
    yield half.connect(server.port)
    half.close()


def in_script(*command: str) -> Command:
    words = ", ".join(repr(word) for word in command)
    return ("EVAL", f"return redis.call({words})", 0)


@pytest.mark.parametrize(
    ("command", "error", "says"),
    [
        (("LPUSH", "text", "x"), errors.WrongType, "WRONGTYPE"),
        (("XADD", "text", "*", "f", "v"), errors.WrongType, "choose another name"),
        (in_script("LPUSH", "text", "x"), errors.WrongType, "WRONGTYPE"),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"), errors.GroupLost, "NOGROUP"),
        (("XPENDING", "s", "g"), errors.GroupLost, "does not exist"),
        (("XPENDING", "nothing", "g"), errors.GroupLost, "NOGROUP"),
        (in_script("XPENDING", "s", "g"), errors.GroupLost, "NOGROUP"),
        (("XINFO", "GROUPS", "nothing"), errors.GroupLost, "no such key"),
        (in_script("XINFO", "GROUPS", "nothing"), errors.GroupLost, "no such key"),
        (("EVALSHA", NO_SHA, 0), ScriptMissing, "NOSCRIPT"),
        (("NOSUCHCOMMAND", "x"), errors.UnsupportedServer, "NOSUCHCOMMAND"),
        (("XGROUP", "NOSUCHTHING", "s", "g"), errors.UnsupportedServer, "NOSUCHTHING"),
        (("INCR", "text"), errors.ServerError, "not an integer"),
        (("GET",), errors.ServerError, "wrong number"),
        (("XADD", "s", "1-1", "f", "v"), errors.ServerError, "equal or smaller"),
        (("AUTH", "nobody", "any"), errors.AuthenticationFailed, "WRONGPASS"),
        (("EVAL", "return redis.error_reply('FENCED x')", 0), errors.ConsumerNameTaken, "FENCED"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple) else "",
)
def test_an_error_reply_becomes_its_error(
    connection: Any, raw: redis.Redis, command: Command, error: type[Exception], says: str
) -> None:
    raw.set("text", "x")
    raw.xadd("s", {"f": "v"})
    with pytest.raises(error, match=says) as told:
        connection.call(*command)
    assert type(told.value) is error
    assert connection.is_open


def test_a_full_server_is_out_of_memory(connection: Any, raw: redis.Redis) -> None:
    raw.config_set("maxmemory", 1)
    for command in (("XADD", "s", "*", "f", "v"), in_script("XADD", "s", "*", "f", "v")):
        with pytest.raises(errors.OutOfMemory, match="maxmemory"):
            connection.call(*command)


def test_a_missing_right_is_permission_denied(connection: Any, raw: redis.Redis) -> None:
    raw.execute_command("ACL", "SETUSER", "ann", "on", ">pw", "~mine*", "+get", "+eval", "+auth")
    try:
        connection.call("AUTH", "ann", "pw")
        commands = (("SET", "mine", "x"), ("GET", "yours"))
        for command in (*commands, *(in_script(*command) for command in commands)):
            with pytest.raises(errors.PermissionDenied):
                connection.call(*command)
    finally:
        raw.execute_command("ACL", "DELUSER", "ann")


def test_too_few_replicas_are_not_replicating(connection: Any, raw: redis.Redis) -> None:
    raw.config_set("min-replicas-to-write", 1)
    for command in (("SET", "k", "v"), in_script("SET", "k", "v")):
        with pytest.raises(errors.NotReplicating):
            connection.call(*command)


@pytest.mark.servers("7.0", "9.1")
@pytest.mark.parametrize("cause", [("DEL", "s"), ("FLUSHALL",), ("XGROUP", "DESTROY", "s", "g")], ids=" ".join)
def test_a_blocked_read_learns_that_its_group_is_gone(
    connection: Any, raw: redis.Redis, server: EmbeddedServer, cause: tuple[str, ...]
) -> None:
    raw.xgroup_create("s", "g", mkstream=True)
    half = SyncHalf()
    reading = half.start(connection.call, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 20_000, "STREAMS", "s", ">")
    eventually(lambda: raw.info("clients")["blocked_clients"])
    raw.execute_command(*cause)
    with pytest.raises(errors.GroupLost):
        reading.result(10)


# --- servers in another state -----------------------------------------------------------------------


@pytest.fixture(params=TEST_SERVERS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    found: ServerKind = request.param
    return found


def test_a_replica_is_a_read_only_server(kind: ServerKind, start_server: Callable[..., EmbeddedServer]) -> None:
    replica = start_server(kind, port=0, options={"replicaof": ["127.0.0.1", str(free_port())]})
    half = SyncHalf()
    connection = half.connect(replica.port)
    for command in (("SET", "k", "v"), in_script("SET", "k", "v")):
        with pytest.raises(errors.ReadOnlyServer, match="READONLY"):
            connection.call(*command)
    connection.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    with pytest.raises(errors.ReadOnlyServer, match="MASTERDOWN"):
        connection.call("GET", "k")
    half.close()


def test_a_read_that_waits_on_a_server_that_becomes_a_replica_is_told_so(
    kind: ServerKind, start_server: Callable[..., EmbeddedServer]
) -> None:
    server = start_server(kind, port=0)
    half = SyncHalf()
    reader, admin = half.connect(server.port), half.connect(server.port)
    admin.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    reading = half.start(reader.call, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 20_000, "STREAMS", "s", ">")
    eventually(lambda: b"blocked_clients:1" in admin.call("INFO", "clients"))
    admin.call("REPLICAOF", "127.0.0.1", free_port())
    with pytest.raises(errors.ReadOnlyServer):
        reading.result(10)
    half.close()


def test_a_server_with_a_password_wants_it(kind: ServerKind, start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(kind, port=0, options={"requirepass": "pw"})
    half = SyncHalf()
    with pytest.raises(errors.AuthenticationFailed, match=r"NOAUTH|Authentication required"):
        half.connect(server.port).call("GET", "k")
    with pytest.raises(errors.AuthenticationFailed, match="WRONGPASS"):
        half.connect(server.port, password="pw").call("AUTH", "wrong")
    half.close()


def test_a_busy_server_says_so(server: EmbeddedServer, fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    raw.config_set("lua-time-limit", 5)
    half = SyncHalf()
    busy, other = half.connect(fault_proxy.port), half.connect(fault_proxy.port)
    running = half.start(busy.call, "EVAL", "while true do end", 0)
    assert fault_proxy.wait_for("EVAL")
    try:
        eventually(lambda: isinstance(other.pipeline([("GET", "k")])[0], errors.ServerBusy))
        with pytest.raises(errors.ServerBusy, match="BUSY"):
            other.call("GET", "k")
    finally:
        other.call("SCRIPT", "KILL")
    with pytest.raises(errors.ServerError, match="kill"):
        running.result(10)
    half.close()


def test_a_cluster_says_where_to_go_and_what_does_not_go_together(cluster: Cluster) -> None:
    half = SyncHalf()
    connections = [half.connect(port) for _, port in cluster.addresses]
    replies = [connection.pipeline([("GET", "key")])[0] for connection in connections]
    moved = [reply for reply in replies if isinstance(reply, Redirected)]
    assert len(moved) == 2
    assert [isinstance(reply, errors.ServerBusy) and reply.ask_host is None for reply in moved] == [True, True]
    for command in (("MGET", "a", "b"), ("EVAL", "return 1", 2, "a", "b")):
        with pytest.raises(errors.ClusterSlotError, match="CROSSSLOT"):
            connections[0].call(*command)
    half.close()


def test_both_lanes_translate_alike(half: Half, server: EmbeddedServer) -> None:
    assert server.port is not None
    connection = half.connect(server.port)
    replies = half.do(connection.pipeline, [("XPENDING", "s", "g"), ("EVALSHA", NO_SHA, 0), ("NOSUCHCOMMAND",)])
    assert [type(reply) for reply in replies] == [errors.GroupLost, ScriptMissing, errors.UnsupportedServer]
