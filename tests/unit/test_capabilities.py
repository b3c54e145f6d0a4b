from __future__ import annotations

import pytest

from penstock.redis.capabilities import MINIMUM, PROBED, describe, known_commands, parse_info


def test_info_is_read_line_by_line() -> None:
    info = parse_info("# Server\r\nredis_version:7.0.15\r\nexecutable:/usr/bin/redis-server\r\nurl:a:b\r\n\r\nnonsense")
    assert info == {"redis_version": "7.0.15", "executable": "/usr/bin/redis-server", "url": "a:b"}


def test_only_commands_that_the_server_described_are_known() -> None:
    names = (MINIMUM, *PROBED)
    found = known_commands(names, [[b"xautoclaim", 2], None, [b"xackdel"], [], None])
    assert found == {MINIMUM, "XACKDEL"}


def test_a_valkey_is_not_taken_for_the_redis_that_it_claims_to_be() -> None:
    found = describe({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, frozenset({"WAITAOF"}), {})
    assert (found.product, found.version) == ("Valkey", "9.1.0")
    assert found.has("waitaof")
    assert not found.has("XNACK")


@pytest.mark.parametrize(
    ("info", "config", "expected"),
    [
        ({}, {}, ("unknown", None, None, None, False)),
        (
            {"redis_version": "7.0.15", "aof_enabled": "1"},
            {"appendfsync": "always"},
            ("7.0.15", True, "always", None, False),
        ),
        ({"redis_version": "6.2.1", "maxmemory_policy": "allkeys-lru"}, {}, ("6.2.1", None, None, "allkeys-lru", True)),
        (
            {"redis_version": "6.2.1", "maxmemory_policy": "volatile-lru"},
            {},
            ("6.2.1", None, None, "volatile-lru", False),
        ),
        ({}, {"maxmemory-policy": "allkeys-lfu"}, ("unknown", None, None, "allkeys-lfu", True)),
    ],
)
def test_what_the_server_would_not_say_is_unknown(
    info: dict[str, str], config: dict[str, str], expected: tuple[object, ...]
) -> None:
    found = describe(info, frozenset(), config)
    assert (found.version, found.is_append_only, found.fsync, found.eviction_policy, found.may_evict) == expected


def test_a_cluster_says_so() -> None:
    assert describe({"cluster_enabled": "1"}, frozenset(), {}).is_cluster
    assert not describe({"cluster_enabled": "0"}, frozenset(), {}).is_cluster
