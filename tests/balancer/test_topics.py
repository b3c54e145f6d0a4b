"""Topics: messages by key to shards, each shard with one owner, the order of a key kept while shards move."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import redis

from penstock import OwnedStream, StreamBalancer, StreamClient, Topic, TopicProducer
from penstock.errors import ConfigurationError
from penstock.keys import hashed_part
from penstock.testing import Cluster
from tests.balancer.stage import QUICK
from tests.helpers.aio import Task, eventually, join, start

pytestmark = pytest.mark.every_server

ORDERS = Topic("orders", shards=6)


class Journal:
    """What all consumers together handled, in their order."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.seen = 0

    def handler(self) -> Any:
        async def handle(stream: OwnedStream) -> None:
            async for message in stream:
                assert message.key is not None
                self.by_key[message.key].append(message.data)
                self.seen += 1
                await stream.commit(message)

        return handle


def member(client: StreamClient, name: str, **settings: Any) -> StreamBalancer:
    return StreamBalancer(client, ORDERS.name, id=name, **{**QUICK, **settings})


def join_in(balancer: StreamBalancer, journal: Journal) -> Task[Any]:
    return start(balancer.run_topic, ORDERS, journal.handler(), handle_signals=False)


async def leave(balancer: StreamBalancer, task: Task[Any]) -> None:
    balancer.stop()
    await join(task)


def test_keys_keep_their_shard_and_shards_lie_in_different_slots() -> None:
    topic = Topic("orders", shards=64)
    assert topic.shard_of("customer-7") == Topic("orders", shards=64).shard_of("customer-7") == 8
    assert len({topic.shard_of(f"customer-{number}") for number in range(2_000)}) == 64
    assert len({hashed_part(stream) for stream in topic.streams}) == 64
    assert topic.stream(3) == "{orders:3}"


@pytest.mark.parametrize(("name", "shards"), [("", 1), ("a,b", 1), ("{a}", 1), ("a", 0), ("a", 20_000), ("a", True)])
def test_topics_that_cannot_work_are_refused(name: str, shards: Any) -> None:
    with pytest.raises(ConfigurationError):
        Topic(name, shards=shards)


async def test_messages_go_to_the_shard_of_their_key(client: StreamClient, raw: redis.Redis) -> None:
    producer = TopicProducer(client, ORDERS)
    for number in range(20):
        stream, entry_id = await producer.push({"n": number}, key=f"customer-{number}")
        assert stream == ORDERS.stream(ORDERS.shard_of(f"customer-{number}"))
        assert raw.xrange(stream, entry_id, entry_id)
    with pytest.raises(ConfigurationError, match="key"):
        await producer.push({}, key="")


async def test_another_number_of_shards_is_refused(client: StreamClient) -> None:
    assert await member(client, "a").announce(ORDERS) == 6
    assert await member(client, "b").announce(ORDERS) == 0
    other = Topic("orders", shards=7)
    with pytest.raises(ConfigurationError, match="has 6 shards, not 7"):
        await member(client, "c").announce(other)
    with pytest.raises(ConfigurationError, match="has 6 shards, not 7"):
        await TopicProducer(client, other).push({}, key="a")


async def test_order_is_kept_per_key_while_consumers_join_and_leave(
    client: StreamClient, raw: redis.Redis, default_server: object
) -> None:
    journal, producer = Journal(), TopicProducer(client, ORDERS)
    a, b, c = (member(client, name) for name in "abc")
    first = join_in(a, journal)
    await eventually(lambda: len(a.owned) == 6)
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            await producer.push(sent // 10, key=f"customer-{sent % 10}")
            sent += 1

    await send(100)
    second = join_in(b, journal)
    await eventually(lambda: (len(a.owned), len(b.owned)) == (3, 3))
    await send(100)
    third = join_in(c, journal)
    await eventually(lambda: [len(one.owned) for one in (a, b, c)] == [2, 2, 2])
    await send(100)
    await leave(b, second)
    await eventually(lambda: sorted(len(one.owned) for one in (a, c)) == [3, 3])
    await send(100)
    await eventually(lambda: all(len(values) == 40 for values in journal.by_key.values()))
    await leave(a, first)
    await leave(c, third)
    assert journal.by_key == {f"customer-{number}": list(range(40)) for number in range(10)}
    assert raw.xlen("orders-input") == 6, "no shard is ever done"


async def test_shards_go_to_those_who_have_room(client: StreamClient, default_server: object) -> None:
    journal = Journal()
    small, large = member(client, "small", capacity=1), member(client, "large")
    tasks = [join_in(small, journal), join_in(large, journal)]
    await eventually(lambda: (len(small.owned), len(large.owned)) == (1, 5))
    await leave(small, tasks[0])
    await eventually(lambda: len(large.owned) == 6)
    await leave(large, tasks[1])


async def test_a_shard_whose_handler_returns_is_handed_out_again(client: StreamClient, default_server: object) -> None:
    runs: list[str] = []

    async def handle(stream: OwnedStream) -> None:
        runs.append(stream.name)
        async for _ in stream:
            return

    producer = TopicProducer(client, ORDERS)
    a = member(client, "a")
    task = start(a.run_topic, ORDERS, handle, handle_signals=False)
    await eventually(lambda: len(runs) == 6)
    stream, _ = await producer.push(1, key="customer-1")
    await eventually(lambda: runs.count(stream) > 1)
    await leave(a, task)


async def test_shards_spread_over_a_cluster_and_are_taken_over_there(cluster: Cluster) -> None:
    host, port = cluster.addresses[0]
    journal = Journal()
    async with StreamClient.from_cluster([{"host": host, "port": port}]) as client:
        producer = TopicProducer(client, ORDERS)
        a, b = member(client, "a"), member(client, "b")
        first = join_in(a, journal)
        await eventually(lambda: len(a.owned) == 6)
        second = join_in(b, journal)
        await eventually(lambda: (len(a.owned), len(b.owned)) == (3, 3))
        for number in range(60):
            await producer.push(number // 10, key=f"customer-{number % 10}")
        await eventually(lambda: journal.seen >= 60)
        await leave(a, first)
        await eventually(lambda: len(b.owned) == 6)
        await leave(b, second)
    assert journal.by_key == {f"customer-{number}": list(range(6)) for number in range(10)}
    nodes = [redis.Redis(host=host, port=port) for host, port in cluster.addresses]
    assert all(any(key.startswith(b"{orders:") for key in node.keys("*")) for node in nodes), "every node has a shard"
    for node in nodes:
        node.close()
