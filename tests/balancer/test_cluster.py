"""In a cluster, where locks and the load balancer stream lie in different slots, the same holds in more steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from penstock import DeadLetters, JsonSerializer, OwnedStream, StreamClient
from penstock.balancer.messages import LBSInfo
from penstock.balancer.owned_stream import StreamWatcher
from penstock.errors import AlreadyClaimed, StreamNotOwned
from penstock.testing import Cluster
from tests.balancer.stage import LBS, SEP, crash, following, quick, running
from tests.helpers.aio import eventually, throughout
from tests.redis.slots import tell


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[StreamClient]:
    host, port = cluster.addresses[0]
    async with StreamClient.from_cluster([{"host": host, "port": port}]) as client:
        yield client


def raw_of(cluster: Cluster) -> redis.RedisCluster:
    host, port = cluster.addresses[0]
    return redis.RedisCluster(host=host, port=port)


async def test_streams_are_owned_kept_finished_and_taken_over(client: StreamClient, cluster: Cluster) -> None:
    raw = raw_of(cluster)
    dead = quick(client, "dead")
    async with following(dead) as (first,):
        ids = [await dead.add_stream(f"session-{number}") for number in range(12)]
        await eventually(lambda: len(first.owned) == 12)
        # Several heartbeats: one that finds all locks as they were says nothing.
        await throughout(1.0, lambda: first.disowned == [] and len(first.owned) == 12)
        locks = [f"session-{number}{SEP}{entry_id}" for number, entry_id in enumerate(ids)]
        await eventually(lambda: {raw.get(lock) for lock in locks} == {b"redis-consumer-dead"})
        assert len({raw.get_node_from_key(lock).name for lock in locks}) == 3
        await dead.done_stream("session-0")
        assert raw.xlen(LBS) == 11
        assert not raw.exists(locks[0])
        async with following(quick(client, "a", recovery_interval_ms=60_000)) as (a,):
            with pytest.raises(AlreadyClaimed, match="redis-consumer-dead"):
                await a.balancer.claim(LBSInfo("session-1", ids[1]))
            await dead.release("session-1")
            await eventually(lambda: a.owned == ["session-1"])
            await crash(dead)
            await eventually(lambda: len(a.owned) == 11)
            await a.balancer.done_stream("session-1")
            assert raw.xlen(LBS) == 10
    raw.close()


async def test_a_lock_that_another_holds_is_lost_and_one_that_nobody_holds_is_taken_up(
    client: StreamClient, cluster: Cluster
) -> None:
    raw = raw_of(cluster)
    async with following(quick(client, "a"), claims=False) as (a,):
        kept, lost = [await a.balancer.add_stream(name) for name in ("kept", "lost")]
        await eventually(lambda: len(a.owned) == 2)
        raw.delete(f"kept{SEP}{kept}")
        raw.set(f"lost{SEP}{lost}", "redis-consumer-b", px=60_000)
        await eventually(lambda: a.disowned == ["lost"])
        await eventually(lambda: raw.get(f"kept{SEP}{kept}") == b"redis-consumer-a")
        with pytest.raises(StreamNotOwned):
            await a.balancer.done_stream("lost")
        assert raw.get(f"lost{SEP}{lost}") == b"redis-consumer-b"
        assert a.owned == ["kept"]
    raw.close()


@pytest.mark.parametrize("name", ["session-1", "{session}-1", "session{}-1"])
async def test_an_entry_that_cannot_be_decoded_is_set_apart_beside_its_stream(
    client: StreamClient, cluster: Cluster, name: str
) -> None:
    raw, seen = raw_of(cluster), []

    async def handle(stream: OwnedStream) -> None:
        async for message in stream:
            seen.append(message.data)
            await stream.commit()

    for data in ('{"n": 1}', "no json", '{"n": 2}'):
        raw.xadd(name, {"data": data})
    balancer = quick(client, "a")
    async with running((balancer, handle), serializer=JsonSerializer()):
        await balancer.add_stream(name)
        await eventually(lambda: len(seen) >= 2)
    assert seen == [{"n": 1}, {"n": 2}]
    dead = balancer.keys.dead_letters_of(name, is_cluster=True)
    ((_, record),) = raw.xrange(dead)
    assert record[b"dlq_reason"] == b"decode_error"
    if name != "session{}-1":  # no other key can be in the slot of that one
        assert raw.keyslot(dead) == raw.keyslot(name)
        (letter,) = await DeadLetters(client, name, dead).list()
        assert letter.data == b"no json"
    raw.close()


async def test_who_waits_for_more_of_a_stream_keeps_his_connection(client: StreamClient, cluster: Cluster) -> None:
    rounds = list[str]()

    async def handle(stream: OwnedStream) -> None:
        async for _ in stream:
            pass

    def waiting() -> set[bytes]:
        clients = [line for address in cluster.addresses for line in tell(address, "CLIENT", "LIST").splitlines()]
        return {client.split()[0] for client in clients if b" flags=b " in client and b" cmd=xread " in client}

    balancer, wait = quick(client, "a"), StreamWatcher.wait

    async def counted(watcher: StreamWatcher, key: str, *args: Any) -> None:
        rounds.append(key)
        await wait(watcher, key, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StreamWatcher, "wait", counted)
        async with running((balancer, handle)):
            await balancer.add_stream("session-1")
            await eventually(lambda: len(rounds) >= 2)
            before, so_far = await eventually(waiting), len(rounds)
            await eventually(lambda: len(rounds) >= so_far + 3)
            assert await eventually(waiting) == before
