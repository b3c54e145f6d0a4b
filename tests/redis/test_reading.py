"""Many questions at once: the replies come in the order of the questions, wherever the keys are."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import redis

from penstock.errors import ConnectionFailed, GroupLost, WrongType
from penstock.redis.embedded import EmbeddedServer
from penstock.testing import Cluster, FaultProxy
from tests.redis.halves import Half
from tests.redis.slots import SlotMove, tags_on_all_nodes

COUNT = 30


def reading(half: Half) -> Any:
    """Returns the module of this half."""
    return importlib.import_module("penstock.redis.reading" if half.name == "async" else "penstock.sync.redis.reading")


def url(cluster: Cluster) -> str:
    return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)


def questions(names: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, ("XLEN", name)) for name in names]


def filled(cluster: Cluster) -> list[str]:
    """Gives each of some streams on all nodes another number of entries: one, two, three..."""
    tags = tags_on_all_nodes(cluster)
    names = [f"s:{n}:{{{tags[n % len(tags)]}}}" for n in range(COUNT)]
    with redis.RedisCluster(*cluster.addresses[0]) as client:
        for n, name in enumerate(names):
            for _ in range(n + 1):
                client.xadd(name, {"data": "x"})
    return names


def test_replies_come_in_the_order_of_the_questions(half: Half, cluster: Cluster) -> None:
    names = filled(cluster)
    client = half.client(url(cluster))
    assert half.do(reading(half).read_many, client, questions(names)) == list(range(1, COUNT + 1))
    assert half.do(reading(half).read_many, client, questions(names[::-1])) == list(range(COUNT, 0, -1))
    assert half.do(reading(half).read_many, client, []) == []


def test_a_slot_on_its_way_and_one_that_has_moved_are_followed(half: Half, cluster: Cluster) -> None:
    names = filled(cluster)
    client = half.client(url(cluster))
    expected = half.do(reading(half).read_many, client, questions(names))
    move = SlotMove(cluster, names[0]).begin().move()
    assert half.do(reading(half).read_many, client, questions(names)) == expected
    move.finish()
    assert half.do(reading(half).read_many, client, questions(names)) == expected


def test_an_error_about_one_key_is_returned_in_its_place(half: Half, default_server: EmbeddedServer) -> None:
    with redis.Redis(unix_socket_path=default_server.unix_socket) as raw:
        raw.xadd("orders", {"data": "x"})
        raw.set("text", "x")
    client = half.client(default_server.unix_url)
    asked = [(key, ("XINFO", "STREAM", key)) for key in ("orders", "text", "missing", "orders")]
    first, text, missing, last = half.do(reading(half).read_many, client, asked)
    assert first == last
    assert isinstance(text, WrongType)
    assert isinstance(missing, GroupLost)


def test_a_connection_that_breaks_is_replaced(half: Half, default_server: EmbeddedServer) -> None:
    with redis.Redis(unix_socket_path=default_server.unix_socket) as raw:
        raw.xadd("orders", {"data": "x"})
    with FaultProxy(default_server.unix_socket) as proxy:
        client = half.client(proxy.url)
        assert half.do(client.ping)
        fault = proxy.drop_reply("XLEN", nth=2)
        assert half.do(reading(half).read_many, client, questions(["orders"] * 3)) == [1, 1, 1]
        assert fault.has_happened
        proxy.refuse()
        proxy.reset_all()
        with pytest.raises(ConnectionFailed):
            half.do(reading(half).read_many, client, questions(["orders"]))


def test_streams_are_found_on_all_nodes_and_nothing_else(half: Half, cluster: Cluster) -> None:
    names = filled(cluster)
    with redis.RedisCluster(*cluster.addresses[0]) as raw:
        raw.set("s:text", "x")
        raw.xadd("other", {"data": "x"})
    client = half.client(url(cluster))
    assert half.do(reading(half).stream_keys, client, "s:*") == sorted(names)
    assert half.do(reading(half).stream_keys, client, "s:[12]:*") == sorted(names[1:3])
    assert half.do(reading(half).stream_keys, client, "none*") == []


def test_more_streams_are_found_than_one_answer_holds(half: Half, default_server: EmbeddedServer) -> None:
    with redis.Redis(unix_socket_path=default_server.unix_socket) as raw:
        pipe = raw.pipeline(transaction=False)
        for n in range(2_500):
            pipe.xadd(f"s:{n}", {"data": "x"})
        pipe.execute()
    client = half.client(default_server.unix_url)
    assert half.do(reading(half).stream_keys, client, "s:*") == sorted(f"s:{n}" for n in range(2_500))
