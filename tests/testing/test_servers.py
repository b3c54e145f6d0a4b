from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask, connect
from penstock.testing import TEST_SERVERS, Cluster, ServerKind, ServerMissing
from penstock.testing.servers import DEFAULT, NEWEST, system_redis
from tests.conftest import ServerPark
from tests.helpers.missing import usual_server

pytestmark = pytest.mark.every_server


def test_each_server_is_of_its_version(server_kind: ServerKind, raw: redis.Redis) -> None:
    info = raw.info("server")
    version = info.get("valkey_version") or info["redis_version"]
    assert server_kind.name.endswith(".".join(version.split(".")[:2]))


def test_a_server_is_empty_at_the_start_of_each_test(raw: redis.Redis) -> None:
    assert raw.dbsize() == 0
    raw.set("left", "behind")
    raw.config_set("maxmemory", "100mb")


def test_a_server_is_empty_and_reset_after_another_test(raw: redis.Redis) -> None:
    assert raw.dbsize() == 0
    assert raw.config_get("maxmemory")["maxmemory"] == "0"
    raw.set("left", "behind")


def test_nobody_from_an_earlier_test_is_connected_any_more(
    server: EmbeddedServer, server_kind: ServerKind, server_park: ServerPark
) -> None:
    with connect(server.unix_socket, 30.0) as killed, connect(server.unix_socket, 30.0) as waiting:
        killed.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert killed.recv(100) == b"+PONG\r\n"
        waiting.sendall(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n")
        assert server_park.get(server_kind) is server
        assert killed.recv(100) == waiting.recv(100) == b""


def test_a_pause_and_a_user_that_a_failed_test_has_left_are_gone(
    server: EmbeddedServer, server_kind: ServerKind, server_park: ServerPark
) -> None:
    for words in (["ACL", "SETUSER", "left", "on", "nopass"], ["CLIENT", "PAUSE", 600_000, "WRITE"]):
        assert ask(server.unix_socket, *words) == b"OK"
    assert server_park.get(server_kind) is server
    assert ask(server.unix_socket, "ACL", "USERS") == [b"default"]
    assert ask(server.unix_socket, "SET", "key", "value") == b"OK"


@pytest.mark.servers("7.0", "valkey")
def test_a_marker_narrows_the_servers(server_kind: ServerKind) -> None:
    assert server_kind in {DEFAULT, NEWEST}


def test_the_default_server_is_one_only(
    server_kind: ServerKind, default_server: EmbeddedServer, redis_url: str
) -> None:
    assert server_kind is usual_server()
    assert redis_url == default_server.unix_url


def test_the_system_server_is_not_the_one_in_the_wheel() -> None:
    found = system_redis()
    assert found is None or not found.is_relative_to(sys.prefix)


@pytest.mark.parametrize("program", [None, Path("/bin/true")])
def test_a_missing_server_says_how_to_get_it(program: Path | None) -> None:
    kind = ServerKind("redis-9.9", (9, 9), lambda: program, "brew it")
    with pytest.raises(ServerMissing, match=r"redis-9\.9 is missing.*: brew it"):
        kind.binary()


def test_a_server_of_its_own_may_be_killed(start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(TEST_SERVERS[-1])
    server.kill()
    assert not server.is_running


def test_the_cluster_serves_all_slots_and_is_empty_after_a_flush(cluster: Cluster) -> None:
    host, port = cluster.addresses[0]
    with redis.RedisCluster(host=host, port=port) as client:
        assert len(client.get_primaries()) == 3
        for number in range(50):
            client.set(f"key-{number}", number)
    sizes = [ask(address, "DBSIZE") for address in cluster.addresses]
    assert sum(sizes) == 50
    assert all(sizes)
    cluster.flush()
    assert [ask(address, "DBSIZE") for address in cluster.addresses] == [0, 0, 0]
