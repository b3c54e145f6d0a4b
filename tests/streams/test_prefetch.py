"""A consumer reads ahead as far as its handlers are fast, never further than it may, and runs as many as it is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage
from penstock.delivery.group_commands import GroupCommands
from tests.helpers.aio import Event, eventually, wait_for
from tests.helpers.commandstats import calls
from tests.streams.stage import STREAM, Recorder, all_ids, pending_ids, publish, quick, recoveries, running

pytestmark = pytest.mark.usefixtures("default_server")


async def test_no_more_than_prefetch_waits_behind_the_running_batch(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(500))
    go_on = Event()

    async def handler(messages: list[StreamMessage]) -> list[str]:
        await wait_for(go_on)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(batch_size=10, prefetch=20, recovery_interval_ms=20), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_read >= 20)
        await recoveries(raw)  # time enough for a read that must not come
        assert len(pending_ids(raw)) <= 10 + 20
        go_on.set()
        await eventually(lambda: consumer.metrics().total_acked == 500)


async def test_reading_ahead_is_bounded_while_handlers_come_and_go(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(2_000))
    most = 0

    def look(messages: list[StreamMessage]) -> list[str]:
        nonlocal most
        most = max(most, len(pending_ids(raw)))
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(batch_size=10, prefetch=50), Recorder(look))
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 2_000)
    # What is done and not acknowledged yet is pending too: it travels with the next read.
    assert most <= 2 * (10 + 50)


async def test_a_fast_handler_is_fed_by_few_reads(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(3_000))
    raw.config_resetstat()
    consumer = StreamConsumer(client, STREAM, quick(batch_size=10), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 3_000)
    assert calls(raw, "xreadgroup") < 150  # 300 reads of one batch each would be the naive way


async def test_a_slow_handler_leaves_new_messages_to_its_peers(client: StreamClient) -> None:
    await publish(client, range(200))
    go_on = Event()

    async def stuck(messages: list[StreamMessage]) -> list[str]:
        await wait_for(go_on)
        return all_ids(messages)

    slow = StreamConsumer(client, STREAM, quick(), stuck)
    fast = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(slow):
        await eventually(lambda: slow.metrics().total_read)
        async with running(fast):
            await eventually(lambda: fast.metrics().total_acked + slow.metrics().total_read == 200)
            go_on.set()
            await eventually(lambda: fast.metrics().total_acked + slow.metrics().total_acked == 200)
    assert (
        slow.metrics().total_read <= 10 + 20
    )  # the batch in hand, and what seemed right for one that returned at once


@pytest.mark.parametrize("kind", ["handler", "message_handler"])
async def test_as_many_handlers_run_side_by_side_as_concurrency_says(client: StreamClient, kind: str) -> None:
    await publish(client, range(30))
    inside, most = 0, 0
    all_inside = Event()

    async def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            all_inside.set()
        await wait_for(all_inside)
        inside -= 1

    async def batch(messages: list[StreamMessage]) -> list[str]:
        await enter()
        return all_ids(messages)

    async def single(message: StreamMessage) -> None:
        await enter()

    handlers = {"handler": batch} if kind == "handler" else {"message_handler": single}
    consumer = StreamConsumer(client, STREAM, quick(concurrency=3, batch_size=5), **handlers)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 30)
    assert most == 3


async def test_plain_functions_run_side_by_side_too(client: StreamClient) -> None:
    await publish(client, range(4))
    together = threading.Barrier(4, timeout=60)

    def handle(message: StreamMessage) -> None:
        together.wait()

    consumer = StreamConsumer(client, STREAM, quick(concurrency=4), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)


async def test_one_batch_handler_at_a_time_keeps_the_order_of_the_stream(client: StreamClient) -> None:
    await publish(client, range(1_000))
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 1_000)
    assert handler.seen == list(range(1_000))


async def test_of_large_messages_few_are_read_at_once_and_few_wait(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, read_command, reads = 300_000, GroupCommands.read_command, list[tuple[int, int]]()

    def watch(commands: GroupCommands, count: int, block_ms: int | None) -> Any:
        reads.append((count, consumer._in_flight.waiting))
        return read_command(commands, count, block_ms)

    pipeline = raw.pipeline(transaction=False)
    for _ in range(80):
        pipeline.xadd(STREAM, {"data": b'"%s"' % (b"x" * size)})
    pipeline.execute()
    monkeypatch.setattr(GroupCommands, "read_command", watch)
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 80)
    assert max(count for count, _ in reads[1:]) <= (4 << 20) // size
    assert max(count + waiting for count, waiting in reads) <= (16 << 20) // size


async def test_of_small_messages_more_and_more_are_read_at_once(
    client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_command, counts = GroupCommands.read_command, list[int]()

    def watch(commands: GroupCommands, count: int, block_ms: int | None) -> Any:
        counts.append(count)
        return read_command(commands, count, block_ms)

    monkeypatch.setattr(GroupCommands, "read_command", watch)
    await publish(client, range(3_000))
    consumer = StreamConsumer(client, STREAM, quick(batch_size=500), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 3_000)
    assert counts[0] == 50
    assert all(count <= 2 * max(before) for count, before in ((counts[i], counts[:i]) for i in range(1, len(counts))))
    assert max(counts) >= 200
