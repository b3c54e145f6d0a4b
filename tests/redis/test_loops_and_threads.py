"""One client in several event loops and threads, and nothing left open when they end."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from penstock import ConsumerConfig, StreamClient, StreamConsumer, StreamProducer, sync
from penstock.errors import ConnectionFailed, NotDurable
from penstock.testing import FaultProxy
from tests.helpers.aio import next_turn
from tests.helpers.threads import eventually
from tests.redis.halves import nothing_left_open

pytestmark = pytest.mark.usefixtures("default_server")


def in_threads(*functions: Callable[[], Any]) -> None:
    """Runs functions side by side and raises what one of them raised."""
    failures: list[BaseException] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:  # raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


async def consume(client: StreamClient, stream: str, count: int) -> list[Any]:
    """Runs a consumer until so many messages were handled."""
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        handled.append(message.data)
        if len(handled) >= count:
            consumer.stop()

    config = ConsumerConfig(group="g", block_ms=100, handle_signals=False)
    consumer = StreamConsumer(client, stream, config, message_handler=handle)
    async with asyncio.timeout(30):
        await consumer.run()
    return handled


def test_a_closed_client_leaves_nothing_open(fault_proxy: FaultProxy) -> None:
    async def program() -> None:
        async with StreamClient.from_url(fault_proxy.url) as client:
            producer = StreamProducer(client, "s")
            await producer.push_many([1, 2, 3])
            assert sorted(await consume(client, "s", 3)) == [1, 2, 3]

    with nothing_left_open():
        asyncio.run(program())
    eventually(lambda: fault_proxy.connections == 0)


def test_one_client_serves_event_loops_one_after_the_other(fault_proxy: FaultProxy) -> None:
    client = StreamClient.from_url(fault_proxy.url)

    async def publish(number: int) -> None:
        await StreamProducer(client, "s").push(number)

    with nothing_left_open():
        for number in range(3):
            asyncio.run(publish(number))
            eventually(lambda: fault_proxy.connections == 0)
        assert asyncio.run(consume(client, "s", 3)) == [0, 1, 2]
        asyncio.run(client.close())
    eventually(lambda: fault_proxy.connections == 0)


def test_one_producer_and_one_consumer_serve_event_loops_one_after_the_other(fault_proxy: FaultProxy) -> None:
    client = StreamClient.from_url(fault_proxy.url)
    producer = StreamProducer(client, "s")
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        handled.append(message.data)
        consumer.stop()

    config = ConsumerConfig(group="g", block_ms=100, concurrency=1, handle_signals=False)
    consumer = StreamConsumer(client, "s", config, message_handler=handle)

    async def program(number: int) -> None:
        await asyncio.gather(producer.push(number))
        await producer.close()
        async with asyncio.timeout(30):
            await consumer.run()

    with nothing_left_open():
        for number in range(3):
            asyncio.run(program(number))
    assert handled == [0, 1, 2]


def test_a_producer_survives_a_loop_that_ended_in_the_middle_of_a_push(
    fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    client = StreamClient.from_url(fault_proxy.url)
    producer = StreamProducer(client, "s")
    fault_proxy.delay_replies(0.3)

    async def give_up() -> None:
        pushing = [asyncio.ensure_future(producer.push(number)) for number in range(3)]
        await asyncio.to_thread(fault_proxy.wait_for, "EVALSHA")
        await next_turn()
        for task in pushing:
            task.cancel()

    async def publish() -> str:
        async with asyncio.timeout(30):
            return await producer.push("again")

    with nothing_left_open():
        asyncio.run(give_up())
        fault_proxy.heal()
        assert asyncio.run(publish()) == raw.xrevrange("s", count=1)[0][0].decode()


def test_a_program_that_forgets_to_close_leaves_nothing_open_either(fault_proxy: FaultProxy) -> None:
    async def program() -> None:
        client = StreamClient.from_url(fault_proxy.url)
        await StreamProducer(client, "s").push({"n": 1})
        await client.dedicated("s")

    with nothing_left_open():
        asyncio.run(program())
    eventually(lambda: fault_proxy.connections == 0)


def test_a_connection_attempt_that_is_cancelled_leaves_nothing_open(fault_proxy: FaultProxy) -> None:
    fault_proxy.black_hole()

    async def program() -> None:
        async with StreamClient.from_url(fault_proxy.url) as client:
            attempt = asyncio.ensure_future(client.ping())
            await asyncio.to_thread(eventually, lambda: fault_proxy.connections)
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)

    with nothing_left_open():
        asyncio.run(program())
    eventually(lambda: fault_proxy.connections == 0)


def test_a_connection_attempt_that_fails_leaves_nothing_open(fault_proxy: FaultProxy) -> None:
    fault_proxy.drop_reply("CLIENT", ending="black_hole")

    async def program() -> None:
        async with StreamClient.from_url(fault_proxy.url, socket_connect_timeout=0.2) as client:
            with pytest.raises(ConnectionFailed):
                await client.ping()

    with nothing_left_open():
        asyncio.run(program())
        blocking = sync.StreamClient.from_url(fault_proxy.url, socket_connect_timeout=0.2)
        fault_proxy.drop_reply("CLIENT", ending="black_hole")
        with pytest.raises(ConnectionFailed):
            blocking.ping()
        blocking.close()
    eventually(lambda: fault_proxy.connections == 0)


def test_one_client_serves_event_loops_in_two_threads_at_once(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    client = StreamClient.from_url(fault_proxy.url)

    def publish(stream: str) -> None:
        async def program() -> None:
            producer = StreamProducer(client, stream)
            ids = await asyncio.gather(*(producer.push(number) for number in range(200)))
            assert len(set(ids)) == 200
            assert sorted(await consume(client, stream, 200)) == list(range(200))

        asyncio.run(program())

    with nothing_left_open():
        in_threads(lambda: publish("a"), lambda: publish("b"))
    assert (raw.xlen("a"), raw.xlen("b")) == (200, 200)
    eventually(lambda: fault_proxy.connections == 0)


def test_many_loops_may_meet_a_client_for_the_first_time_at_once(fault_proxy: FaultProxy) -> None:
    client = StreamClient.from_url(fault_proxy.url)
    together = threading.Barrier(12)

    def ping() -> None:
        async def program() -> None:
            together.wait(30)
            for _ in range(20):
                assert await client.ping()

        asyncio.run(program())

    with nothing_left_open():
        in_threads(*[ping] * 12)
    eventually(lambda: fault_proxy.connections == 0)


def test_closing_ends_what_waits_in_another_loop(fault_proxy: FaultProxy) -> None:
    client = StreamClient.from_url(fault_proxy.url)
    ended: list[BaseException] = []

    def wait() -> None:
        async def program() -> None:
            connection = await client.dedicated("list")
            try:
                await connection.call("BLPOP", "list", 20)
            except Exception as error:  # looked at below
                ended.append(error)

        asyncio.run(program())

    def close() -> None:
        assert fault_proxy.wait_for("BLPOP")
        asyncio.run(client.close())

    with nothing_left_open():
        in_threads(wait, close)
    assert [type(error).__name__ for error in ended] == ["ConnectionLost"]
    eventually(lambda: fault_proxy.connections == 0)


def test_threads_share_a_sync_client(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    with nothing_left_open(), sync.StreamClient.from_url(fault_proxy.url) as client:
        producer = sync.StreamProducer(client, "s")
        found: list[list[str]] = []

        def publish() -> None:
            found.append([producer.push(number) for number in range(50)])

        in_threads(*[publish] * 8)
        assert fault_proxy.connections == 1
    assert len({entry_id for ids in found for entry_id in ids}) == raw.xlen("s") == 400
    eventually(lambda: fault_proxy.connections == 0)


def test_threads_may_open_connections_of_their_own_at_once(redis_url: str) -> None:
    with sync.StreamClient.from_url(redis_url) as client:
        together = threading.Barrier(8)

        def connect() -> None:
            together.wait(30)
            for _ in range(20):
                connection = client.dedicated("")
                assert connection.call("PING") == b"PONG"
                connection.close()

        in_threads(*[connect] * 8)


@pytest.mark.parametrize("durability", ["fast", "replicated"])
def test_a_sync_producer_keeps_its_connection(fault_proxy: FaultProxy, raw: redis.Redis, durability: Any) -> None:
    raw.config_set("min-replicas-to-write", 0)
    with sync.StreamClient.from_url(fault_proxy.url) as client:
        producer = sync.StreamProducer(client, "s", durability=durability, durability_timeout_ms=1)
        for _ in range(5):
            with suppress(NotDurable):  # there is no replica
                producer.push(1)
        # One that is shared asks for its number as well.
        assert fault_proxy.count("CLIENT") == (3 if durability == "fast" else 2), "one login: name and version"
    assert raw.xlen("s") == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_connections_and_a_producer_of_its_own(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    with sync.StreamClient.from_url(fault_proxy.url) as client:
        producer = sync.StreamProducer(client, "s")
        producer.push("before")
        child = in_fork(lambda: [producer.push(f"child {n}") for n in range(50)] and client.close())
        found = [client.call("", "ECHO", n) for n in range(200)]
        for n in range(50):
            producer.push(f"parent {n}")
        assert os.waitpid(child, 0)[1] == 0
        assert found == [b"%d" % n for n in range(200)], "no reply of the child came here"
        assert client.ping(), "the child closed what is its own"
    entries = [fields[b"data"] for _, fields in raw.xrange("s")]
    assert len(entries) == len(set(entries)) == 101


def in_fork(function: Callable[[], Any]) -> int:
    """Runs a function in a forked process, which ends with 0 if all went well; returns its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while other threads run
        child = os.fork()
    if child == 0:
        failed = 1
        try:
            function()
            failed = 0
        finally:
            os._exit(failed)
    return child
