"""A reply that is seen so late that its leases may have expired hands out nothing; what is still ours is looked up."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import redis

from penstock import StreamClient, StreamConsumer
from penstock.delivery.group_commands import GroupCommands
from penstock.delivery.reader import MessageReader
from penstock.errors import CommandTimeout
from penstock.redis.blocking_read import BlockingRead
from tests.helpers.aio import eventually
from tests.helpers.commandstats import calls
from tests.streams.stage import GROUP, STREAM, Recorder, pending_ids, publish, quick, running

pytestmark = pytest.mark.usefixtures("default_server")
LEASE_MS = 400


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_reply_that_is_seen_too_late_hands_out_only_what_is_still_ours(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    send, late = BlockingRead.send, list[bool]()

    async def send_and_be_blocked(read: BlockingRead, commands: Any, timeout_s: float, on_reply: Any) -> Any:
        def see_late(index: int, reply: Any) -> None:
            if index == len(commands) - 1 and reply and not late:
                late.append(True)
                if is_lost:
                    raw.xclaim(STREAM, GROUP, "thief", 0, pending_ids(raw), justid=True)
                time.sleep(LEASE_MS / 1000)  # as if a handler blocked the event loop while the reply was in the socket
            on_reply(index, reply)

        return await send(read, commands, timeout_s, see_late)

    monkeypatch.setattr(BlockingRead, "send", send_and_be_blocked)
    await publish(client, ["first"])
    handler = Recorder()
    config = quick(min_idle_claim_ms=LEASE_MS, recovery_interval_ms=60_000)  # nobody takes it from the thief
    consumer = StreamConsumer(client, STREAM, config, handler)
    async with running(consumer):
        await eventually(lambda: late)
        await publish(client, ["second"])
        await eventually(lambda: "second" in handler.seen)
    assert handler.seen == (["second"] if is_lost else ["first", "second"])
    assert set(handler.counts) == {(1, 1)}
    assert len(pending_ids(raw)) == is_lost


@pytest.mark.parametrize("is_lost", [True, False])
async def test_after_a_reply_that_was_lost_or_late_fewer_messages_are_read(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    read_command, send, counts = GroupCommands.read_command, BlockingRead.send, list[int]()
    size = 200_000

    def watch(commands: GroupCommands, count: int, block_ms: int | None) -> Any:
        counts.append(count)
        return read_command(commands, count, block_ms)

    async def lose(read: BlockingRead, *args: Any) -> Any:
        if len(counts) == 1:
            raise CommandTimeout("as if the reply was too large for a slow link")
        return await send(read, *args)

    monkeypatch.setattr(GroupCommands, "read_command", watch)
    if is_lost:
        monkeypatch.setattr(BlockingRead, "send", lose)
    else:
        monkeypatch.setattr(sys.modules[MessageReader.__module__], "is_late", lambda *_: len(counts) == 1)
    pipeline = raw.pipeline(transaction=False)
    for _ in range(60):
        pipeline.xadd(STREAM, {"data": b'"%s"' % (b"x" * size)})
    pipeline.execute()
    consumer = StreamConsumer(client, STREAM, quick(batch_size=50), Recorder())
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 60)
    assert counts[0] == 50
    assert counts[1] <= (25 if is_lost else (4 << 20) // size // 2)


async def test_a_read_waits_no_longer_than_half_a_lease(client: StreamClient, raw: redis.Redis) -> None:
    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=40, block_ms=60_000), Recorder())
    async with running(consumer):
        await eventually(lambda: calls(raw, "xreadgroup") > 3)
