"""A reply that is seen so late that its leases may have expired hands out nothing; what is still ours is looked up."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from penstock import StreamClient, StreamConsumer
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


async def test_a_read_waits_no_longer_than_half_a_lease(client: StreamClient, raw: redis.Redis) -> None:
    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=40, block_ms=60_000), Recorder())
    async with running(consumer):
        await eventually(lambda: calls(raw, "xreadgroup") > 3)
