"""Reads that wait at the server: woken, broken off, and killed when nobody waits for them any more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from penstock import StreamClient
from penstock.errors import ConnectionLost, GroupLost
from penstock.redis.blocking_read import BlockingRead
from tests.helpers.aio import eventually, is_done, join, start
from tests.helpers.commandstats import calls

pytestmark = pytest.mark.usefixtures("default_server")
FOR_EVER = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
LONG_S = 600.0


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture
def read(client: StreamClient, raw: redis.Redis) -> BlockingRead:
    raw.xgroup_create("s", "g", mkstream=True)
    return BlockingRead(client, "s")


def is_waiting(raw: redis.Redis) -> bool:
    return bool(raw.info("clients")["blocked_clients"] == 1)


async def test_a_read_that_is_woken_returns_nothing_and_the_next_one_goes_out_on_the_same_connection(
    read: BlockingRead, raw: redis.Redis
) -> None:
    reading = start(read.call, FOR_EVER, LONG_S)
    await eventually(lambda: is_waiting(raw))
    assert await read.wake()
    assert await join(reading) is None
    connection = read.connection
    raw.xadd("s", {"n": 1})
    assert len((await read.call(FOR_EVER, LONG_S))[0][1]) == 1
    assert read.connection is connection
    assert not await read.wake(), "nothing waits"


async def test_waking_a_read_that_the_server_holds_back_in_a_pause_does_not_crash_the_server(
    read: BlockingRead, raw: redis.Redis
) -> None:
    # Redis 6.2 and 7.0 panic when CLIENT UNBLOCK hits a client that CLIENT PAUSE holds back, as a manual failover does.
    await read.open()
    raw.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    reading = start(read.call, FOR_EVER, LONG_S)
    await eventually(lambda: any(client["cmd"] == "xreadgroup" for client in raw.client_list()))
    waking = start(read.wake)
    await eventually(lambda: any(client["cmd"] == "eval" for client in raw.client_list()))
    raw.execute_command("CLIENT", "UNPAUSE")
    assert await join(waking)
    assert await join(reading) is None


async def test_a_read_whose_number_is_unknown_is_not_woken_but_can_be_broken_off(
    read: BlockingRead, raw: redis.Redis
) -> None:
    await read.open()
    assert read.connection is not None
    read.connection.client_id = 0
    reading = start(read.call, FOR_EVER, LONG_S)
    await eventually(lambda: is_waiting(raw))
    assert not await read.wake()
    assert not is_done(reading)
    read.abort()
    with pytest.raises(ConnectionLost):
        await join(reading)


async def test_a_connection_on_which_no_read_was_under_way_is_not_killed(read: BlockingRead, raw: redis.Redis) -> None:
    await read.open()
    read.abort()
    before = calls(raw, "client|kill")
    await read.kill_abandoned()
    assert calls(raw, "client|kill") == before


async def test_what_an_error_says_is_raised_and_the_next_read_connects_anew(
    read: BlockingRead, raw: redis.Redis
) -> None:
    raw.delete("s")
    with pytest.raises(GroupLost):
        await read.call(FOR_EVER, LONG_S)
    assert not read.is_open
    raw.xgroup_create("s", "g", mkstream=True)
    raw.xadd("s", {"n": 1})
    assert len((await read.call(FOR_EVER, LONG_S))[0][1]) == 1


async def test_the_server_closes_a_read_that_was_given_up_so_that_it_takes_nothing_later(
    read: BlockingRead, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await read.open()
    connection = read.connection
    assert connection is not None
    reading = start(read.call, FOR_EVER, LONG_S)
    await eventually(lambda: is_waiting(raw))
    with monkeypatch.context() as patched:
        patched.setattr(connection, "abort", lambda: None)  # the server does not hear that this side has hung up
        reading.cancel()
        await eventually(lambda: is_done(reading))
    assert is_waiting(raw)
    await read.kill_abandoned()
    assert not is_waiting(raw)
    raw.xadd("s", {"n": 1})
    assert raw.xpending("s", "g")["pending"] == 0
    await read.kill_abandoned()  # there is nothing left to do
