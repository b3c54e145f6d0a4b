"""An error that stays stops run() with its cause; one that passes is survived, and costs no message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from penstock import ConsumerGroup, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.errors import AuthenticationFailed, OutOfMemory, PermissionDenied, WrongType
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.helpers.aio import Event, eventually, is_done, join, start, throughout, wait_for
from tests.streams.stage import (
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    of_kind,
    pending_ids,
    publish,
    quick,
    recoveries,
    running,
)

StartServer = Callable[..., EmbeddedServer]


def kill_connections(raw: redis.Redis) -> None:
    raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


# --- errors that stay -----------------------------------------------------------------------------


async def test_a_key_that_is_no_stream_stops_the_consumer(client: StreamClient, raw: redis.Redis) -> None:
    raw.set(STREAM, "not a stream")
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    with pytest.raises(WrongType, match="another type"):
        await join(start(consumer.run))
    with pytest.raises(WrongType):
        await consumer.run_once()
    await consumer.close()


async def test_a_key_that_ceases_to_be_a_stream_stops_the_consumer(client: StreamClient, raw: redis.Redis) -> None:
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    run = start(consumer.run)
    await publish(client, [1])
    await eventually(lambda: consumer.metrics().total_acked == 1)
    with raw.pipeline() as both:
        both.delete(STREAM).set(STREAM, "not a stream").execute()
    with pytest.raises(WrongType):
        await join(run)


async def test_a_right_that_is_taken_away_stops_the_consumer(start_server: StartServer) -> None:
    server = start_server()
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")
        async with StreamClient.from_url(server.unix_url, username="worker", password="secret") as client:
            consumer = StreamConsumer(client, STREAM, quick(), Recorder())
            run = start(consumer.run)
            await publish(client, [1])
            await eventually(lambda: consumer.metrics().total_acked == 1)
            admin.execute_command("ACL", "SETUSER", "worker", "-xreadgroup")
            with pytest.raises(PermissionDenied, match=r"(?i)xreadgroup"):
                await join(run)


async def test_a_right_that_was_never_given_stops_the_consumer(start_server: StartServer) -> None:
    server = start_server()
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~other", "+@all")
        async with StreamClient.from_url(server.unix_url, username="worker", password="secret") as client:
            with pytest.raises(PermissionDenied):
                await join(start(StreamConsumer(client, STREAM, quick(), Recorder()).run))
            with pytest.raises(PermissionDenied):
                await StreamProducer(client, STREAM).push({"n": 1})


async def test_a_wrong_password_stops_the_consumer_and_is_not_printed(start_server: StartServer) -> None:
    server = start_server(options={"requirepass": "right"})
    async with StreamClient.from_url(server.unix_url, password="wr0ng") as client:
        with pytest.raises(AuthenticationFailed) as caught:
            await join(start(StreamConsumer(client, STREAM, quick(), Recorder()).run))
        with pytest.raises(AuthenticationFailed):
            await StreamProducer(client, STREAM).push({"n": 1})
    assert "wr0ng" not in str(caught.value)


async def test_a_password_that_changes_stops_the_consumer_at_the_next_connection(start_server: StartServer) -> None:
    server = start_server()
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")
        async with StreamClient.from_url(server.unix_url, username="worker", password="secret") as client:
            consumer = StreamConsumer(client, STREAM, quick(), Recorder())
            run = start(consumer.run)
            await publish(client, [1])
            await eventually(lambda: consumer.metrics().total_acked == 1)
            admin.execute_command("ACL", "SETUSER", "worker", "resetpass", ">other")
            kill_connections(admin)
            with pytest.raises(AuthenticationFailed):
                await join(run)


# --- errors that pass -----------------------------------------------------------------------------


async def test_a_paused_server_is_waited_for(client: StreamClient, raw: redis.Redis) -> None:
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await publish(client, range(10))
        await eventually(lambda: consumer.metrics().total_acked == 10)
        raw.execute_command("CLIENT", "PAUSE", 500)
        await publish(client, range(10, 20))
        await eventually(lambda: consumer.metrics().total_acked == 20)
    assert handler.seen == list(range(20))


async def test_broken_connections_are_replaced_and_cost_no_message(client: StreamClient, raw: redis.Redis) -> None:
    handler = Recorder()
    events: list[Occurrence] = []
    config = quick(min_idle_claim_ms=60_000, max_deliveries=100)
    consumer = StreamConsumer(client, STREAM, config, handler, on_event=events.append)
    producer = StreamProducer(client, STREAM)
    async with running(consumer):
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)  # its first connection is there
        for turn in range(10):
            await producer.push_many(range(turn * 10, turn * 10 + 10))
            kill_connections(raw)
            await eventually(lambda: consumer.metrics().total_acked >= turn * 10)  # noqa: B023  # in this turn
        await eventually(lambda: consumer.metrics().total_acked == 100)
    assert set(handler.seen) == set(range(100))
    assert of_kind(events, EventName.RECONNECTED)
    assert pending_ids(raw) == []
    assert raw.xlen(STREAM) == 100


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("nth", [1, 2])
async def test_an_ack_whose_answer_was_lost_is_counted_once_and_is_no_lost_lease(
    client: StreamClient, fault_proxy: FaultProxy, nth: int
) -> None:
    handler = Recorder()
    async with StreamClient.from_url(fault_proxy.url) as shaky:
        consumer = StreamConsumer(shaky, STREAM, quick(min_idle_claim_ms=60_000), handler)
        async with running(consumer):
            await eventually(lambda: consumer._is_open)
            fault = fault_proxy.drop_reply("EVALSHA", nth, containing=script("streams/ack").sha.encode())
            for turn in range(3):
                await publish(client, range(turn * 5, turn * 5 + 5))
                await eventually(lambda: consumer.metrics().total_acked == turn * 5 + 5)  # noqa: B023  # in this turn
    assert fault.has_happened
    assert handler.seen == list(range(15))
    assert consumer.metrics().total_lease_lost == 0


async def test_scripts_that_the_server_forgot_are_sent_again(client: StreamClient, raw: redis.Redis) -> None:
    handler = Recorder(
        lambda messages: [message.id for message in messages if message.data % 5 or message.attempts > 1]
    )
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    producer = StreamProducer(client, STREAM)
    async with running(consumer):
        for turn in range(5):
            await producer.push_many(range(turn * 10, turn * 10 + 10))
            raw.script_flush()
        await eventually(lambda: consumer.metrics().total_acked == 50)
    assert handler.runs == {n: 1 if n % 5 else 2 for n in range(50)}


@contextmanager
def busy(server: EmbeddedServer, raw: redis.Redis) -> Iterator[None]:
    """Keeps the server busy with a script that does not end."""

    def loop() -> None:
        with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as other, pytest.raises(redis.ResponseError):
            other.eval("while true do end", 0)

    raw.config_set("lua-time-limit", 20)
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():
            try:
                raw.script_kill()
            except redis.ResponseError:  # not yet, or not any more
                thread.join(0.05)


def is_busy(raw: redis.Redis) -> bool:
    try:
        return not raw.ping()
    except redis.exceptions.ResponseError as error:
        return "BUSY" in str(error)
    except redis.exceptions.BusyLoadingError:
        return True


async def test_an_ack_that_a_busy_server_refused_is_said_again(
    client: StreamClient, server: EmbeddedServer, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    began, go_on = Event(), Event()
    runs: list[int] = []

    async def slow(messages: list[StreamMessage]) -> list[str]:
        runs.extend(message.data for message in messages)
        if 1 in runs:
            began.set()
            await wait_for(go_on)
        return all_ids(messages)

    # The consumer looks for what it has forgotten every 20 ms: a lost ack would soon be a second run.
    config = quick(block_ms=20, recovery_interval_ms=20)
    async with StreamClient.from_url(fault_proxy.url) as observed:
        consumer = StreamConsumer(observed, STREAM, config, slow)
        async with running(consumer):
            await publish(client, range(5))
            await wait_for(began)
            with busy(server, raw):
                await eventually(lambda: is_busy(raw))
                acks = script("streams/ack").sha.encode()
                said_again = fault_proxy.late_request("EVALSHA", 0.001, nth=2, containing=acks)
                go_on.set()
                await eventually(lambda: said_again.has_happened)
            await eventually(lambda: consumer.metrics().total_acked == 5)
            await recoveries(raw)
    assert sorted(runs) == list(range(5))
    assert pending_ids(raw) == []


async def test_a_server_without_memory_refuses_new_messages_and_lets_the_old_ones_be_finished(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(30))
    producer = StreamProducer(client, STREAM)
    is_open = False

    def fail_until_open(messages: list[StreamMessage]) -> list[str]:
        return all_ids(messages) if is_open or messages[0].data >= 10 else []

    consumer = StreamConsumer(client, STREAM, quick(max_deliveries=1_000), Recorder(fail_until_open))
    raw.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemory, match="memory"):
        await producer.push({"n": 1})
    raw.config_set("maxmemory", 0)
    async with running(consumer):
        await eventually(lambda: consumer._is_open)
        raw.config_set("maxmemory", 1)
        await eventually(lambda: consumer.metrics().total_retried > 20)  # failing needs no memory either
        is_open = True
        await eventually(lambda: consumer.metrics().total_acked == 30)
    raw.config_set("maxmemory", 0)
    assert consumer.metrics().total_dlq == 0


@pytest.mark.parametrize(
    "settings", [{}, {"worker_name": "worker-1"}, {"dlq_stream": "graveyard", "dlq_group": "dead_letter_writers"}]
)
async def test_a_consumer_can_start_on_a_server_without_memory_and_drain_it(
    client: StreamClient, raw: redis.Redis, settings: dict[str, str]
) -> None:
    await publish(client, range(30))
    await ConsumerGroup(client, STREAM, GROUP).ensure("graveyard", "dead_letter_writers")
    raw.config_set("maxmemory", 1)
    consumer = StreamConsumer(client, STREAM, quick(**settings), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 30)
    assert pending_ids(raw) == []


async def test_run_waits_for_a_server_that_is_not_there_yet(start_server: StartServer) -> None:
    server = start_server()
    server.kill()
    async with StreamClient.from_url(server.unix_url) as client:
        consumer = StreamConsumer(client, STREAM, quick(), Recorder())
        run = start(consumer.run)
        await throughout(0.1, lambda: not is_done(run))  # its tries reach nobody who could count them
        server.start()
        await publish(client, range(5))
        await eventually(lambda: consumer.metrics().total_acked == 5)
        consumer.stop()
        await join(run)


async def test_stop_works_while_the_server_is_away(start_server: StartServer) -> None:
    server = start_server()
    async with StreamClient.from_url(server.unix_url) as client:
        consumer = StreamConsumer(client, STREAM, quick(), Recorder())
        run = start(consumer.run)
        await publish(client, [1])
        await eventually(lambda: consumer.metrics().total_acked == 1)
        server.kill()
        consumer.stop()
        await join(run)
