"""A reply that is seen so late that its lease may have expired hands out nothing; what is still ours is looked up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis

from penstock import StreamClient
from penstock.delivery.group_commands import GroupCommands
from penstock.queue.consumer_slots import ConsumerSlot
from penstock.redis.blocking_read import BlockingRead
from tests.helpers.aio import pause
from tests.queue.scenes import GROUP, QUEUE, pending, queue_of, quick_gateway, take, taken

pytestmark = pytest.mark.usefixtures("default_server")
LEASE_S = 0.4


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("is_again", [True, False])
async def test_a_reply_that_is_seen_too_late_hands_out_only_what_is_still_ours(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_again: bool, is_lost: bool
) -> None:
    send, begin, late = BlockingRead.send, GroupCommands.begin, list[bool]()

    async def see_late() -> None:
        if not late:
            late.append(True)
            if is_lost:
                raw.xclaim(QUEUE, GROUP, "thief", 0, list(pending(raw)), justid=True)
            await pause(LEASE_S)  # as if a handler blocked the event loop while the reply was in the socket

    async def read_late(*args: Any) -> Any:
        replies = await send(*args)
        if replies[-1]:
            await see_late()
        return replies

    async def begin_late(*args: Any) -> Any:
        answers = await begin(*args)
        await see_late()
        return answers

    gateway = quick_gateway(client, message_visibility_timeout_seconds=LEASE_S)
    queue = queue_of(gateway)
    await queue.publish("a")
    if is_again:
        await (await taken(queue)).end(ValueError())
        monkeypatch.setattr(GroupCommands, "begin", begin_late)
    else:
        monkeypatch.setattr(BlockingRead, "send", read_late)
    gateway._consumer_of(QUEUE)._next_recovery_s = math.inf  # nobody takes it from the thief
    held = await take(queue)
    assert late
    assert (held is None) == is_lost
    if held is not None:
        runs = 1 + is_again
        assert (held.processing.delivery_count, held.processing.attempts) == (runs, runs)
        await held.end()
    assert len(pending(raw)) == is_lost
    await queue.close()


async def test_a_read_waits_no_longer_than_half_a_lease(client: StreamClient, monkeypatch: pytest.MonkeyPatch) -> None:
    read, waits = ConsumerSlot.read, list[int]()

    async def noted(slot: ConsumerSlot, block_ms: int | None) -> Any:
        waits.append(block_ms or 0)
        return await read(slot, block_ms)

    monkeypatch.setattr(ConsumerSlot, "read", noted)
    gateway = quick_gateway(client, message_visibility_timeout_seconds=LEASE_S)
    gateway._consumer_of(QUEUE)._next_recovery_s = math.inf
    queue = queue_of(gateway)
    assert await take(queue) is None
    assert max(waits) <= LEASE_S / 2 * 1000
    await queue.close()


async def test_a_lease_begins_when_its_message_is_asked_for(client: StreamClient) -> None:
    gateway = quick_gateway(client)
    queue = queue_of(gateway)
    await queue.publish("a")
    held = await taken(queue)
    (delivery,) = gateway._held.values()
    assert delivery.expires_at == delivery.slot.read_sent_s + 60.0
    await held.end()
    await queue.close()
