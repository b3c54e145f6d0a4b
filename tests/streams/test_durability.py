"""Durability is a named mode, and a producer says so when it was not reached."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from penstock import StreamClient, StreamProducer
from penstock.errors import NotDurable, UnsupportedServer
from penstock.redis.embedded import EmbeddedServer
from penstock.testing.servers import NEWEST
from tests.helpers.aio import eventually, outcomes, start
from tests.streams.stage import STREAM

StartServer = Callable[..., EmbeddedServer]


async def test_replicated_without_a_replica_raises_and_names_what_was_written(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, durability="replicated", durability_timeout_ms=20)
    with pytest.raises(NotDurable, match="0 of 1 replicas") as caught:
        await producer.push_many([{"n": 1}, {"n": 2}])
    assert list(caught.value.ids) == [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)]
    assert producer.metrics().total_pushed == 2
    assert producer.metrics().total_rejected == 0


@pytest.mark.usefixtures("default_server")
async def test_each_caller_is_told_of_its_own_entry_only(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, durability="replicated", durability_timeout_ms=20)
    pushes = [start(producer.push, {"n": n}) for n in range(5)]
    errors = await outcomes(pushes)
    assert all(isinstance(error, NotDurable) for error in errors)
    assert [len(error.ids) for error in errors] == [1] * 5
    assert {error.ids[0] for error in errors} == {entry_id.decode() for entry_id, _ in raw.xrange(STREAM)}


async def test_replicated_returns_when_the_replica_has_confirmed(start_server: StartServer) -> None:
    primary = start_server(port=0, options={"repl-diskless-sync-delay": "0"})
    replica = start_server(port=0)
    with (
        redis.Redis(unix_socket_path=replica.unix_socket, protocol=2) as follower,
        redis.Redis(unix_socket_path=primary.unix_socket, protocol=2) as leader,
    ):
        follower.replicaof("127.0.0.1", primary.port)
        await eventually(lambda: leader.wait(1, 50) == 1)
        async with StreamClient.from_url(primary.unix_url) as client:
            producer = StreamProducer(client, STREAM, durability="replicated", durability_timeout_ms=60_000)
            entry_id = await producer.push({"n": 1})
            await producer.close()
        assert follower.xrange(STREAM)[0][0].decode() == entry_id


async def test_local_returns_when_the_entry_is_on_the_disk(start_server: StartServer) -> None:
    server = start_server(kind=NEWEST, persistent=True)
    async with StreamClient.from_url(server.unix_url) as client:
        producer = StreamProducer(client, STREAM, durability="local")
        ids = await producer.push_many([{"n": n} for n in range(10)])
        assert len(set(ids)) == 10
        server.kill()
        server.start()
        with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as raw:
            assert [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)] == ids


@pytest.mark.servers("valkey")
async def test_local_on_a_server_that_writes_no_file_raises(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM, durability="local")
    with pytest.raises(NotDurable, match="appendonly"):
        await producer.push({"n": 1})
    assert raw.xlen(STREAM) == 1


@pytest.mark.servers("6.2", "7.0")
async def test_local_on_a_server_that_cannot_confirm_it_is_refused_before_anything_is_written(
    client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, STREAM, durability="local")
    with pytest.raises(UnsupportedServer, match="WAITAOF"):
        await producer.push({"n": 1})
    assert not raw.exists(STREAM)
