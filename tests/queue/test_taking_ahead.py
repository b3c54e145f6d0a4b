"""Who asks for the next message as soon as one has ended gets it together with the end, and it waits for nobody else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.errors import ConnectionLost
from penstock.queue.desk import Desk
from penstock.queue.returner import Returner
from penstock.testing import FaultProxy
from tests.queue.scenes import (
    GROUP,
    QUEUE,
    age,
    always_ahead,
    look_again,
    pending,
    queue_of,
    quick_gateway,
    taken,
)

pytestmark = pytest.mark.usefixtures("default_server")
_TRIES = 1_500


async def until(is_true: Callable[[], Any], what: str) -> None:
    for _ in range(_TRIES):
        if is_true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {what}")


def desk_of(gateway: RedisGateway) -> Desk:
    return gateway._desk(QUEUE)


def ahead_of(gateway: RedisGateway) -> list[str]:
    return [slot.ahead_id for slot in desk_of(gateway)._slots._free if slot.has_ahead]


async def publish(queue: RedisMessageQueue, count: int) -> list[str]:
    messages = [f"message {number}" for number in range(count)]
    for message in messages:
        assert await queue.publish(message)
    return messages


async def process(queue: RedisMessageQueue, count: int) -> list[Any]:
    """Processes messages one after the other, without a pause."""
    found = []
    for _ in range(count):
        async with queue.process_message() as message:
            found.append(message)
    return found


@pytest.fixture
def no_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody puts back what was taken ahead."""
    monkeypatch.setattr(Returner, "start", lambda _self: None)


# --- what it is for ---------------------------------------------------------------------------------


async def test_a_loop_gets_every_message_once_and_in_order(client: StreamClient, raw: redis.Redis) -> None:
    queue = queue_of(quick_gateway(client))
    messages = await publish(queue, 500)
    assert await process(queue, 500) == messages
    assert raw.xlen(QUEUE) == 0
    assert pending(raw) == {}
    await queue.close()


async def test_the_next_message_comes_with_the_end_of_the_one_before(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client:
        gateway = always_ahead(client)
        queue = queue_of(gateway)
        await publish(queue, 20)
        await process(queue, 1)
        assert ahead_of(gateway) == list(pending(raw))
        seen = fault_proxy.count("XREADGROUP")
        held = await taken(queue)
        assert held.message == "message 1"
        assert fault_proxy.count("XREADGROUP") == seen
        assert (held.processing.delivery_count, held.processing.attempts) == (1, 1)
        await held.end()
        await queue.close()


# --- when it is not done ----------------------------------------------------------------------------


async def test_the_first_messages_of_a_loop_are_not_taken_ahead(client: StreamClient, raw: redis.Redis) -> None:
    gateway = quick_gateway(client)
    queue = queue_of(gateway)
    await publish(queue, 40)
    await process(queue, 20)
    assert pending(raw) == {}
    await queue.close()


async def test_a_caller_who_takes_his_time_has_nothing_taken_ahead(client: StreamClient, raw: redis.Redis) -> None:
    gateway = quick_gateway(client)
    queue = queue_of(gateway)
    await publish(queue, 200)
    await process(queue, 100)
    desk_of(gateway)._ended_s -= 1.0
    await process(queue, 1)
    assert desk_of(gateway)._brisk_turns == 0
    assert ahead_of(gateway) == []
    assert await process(queue, 1) == ["message 101"]
    await queue.close()


@pytest.mark.parametrize(
    "lease",
    [
        {"message_visibility_timeout_seconds": None, "max_delivery_count": None},
        {"message_visibility_timeout_seconds": 0.9},
    ],
)
async def test_without_a_lease_or_with_a_short_one_nothing_is_taken_ahead(
    client: StreamClient, raw: redis.Redis, lease: dict[str, Any]
) -> None:
    gateway = quick_gateway(client, **lease)
    queue = queue_of(gateway)
    await publish(queue, 3)
    held = await taken(queue)
    desk_of(gateway)._brisk_turns = 1_000_000
    await held.end()
    assert pending(raw) == {}
    await queue.close()


async def test_who_is_to_stop_gets_nothing_more(client: StreamClient, raw: redis.Redis) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 3)
    held = await taken(queue)
    gateway.stop_when(lambda: True)
    await held.end()
    assert pending(raw) == {}
    await queue.close()


async def test_what_waits_for_its_next_attempt_comes_first(client: StreamClient) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway, retry_delay_seconds=0.001, max_retry_delay_seconds=0.001)
    await publish(queue, 4)
    with pytest.raises(ValueError, match="failed"):
        async with queue.process_message():
            raise ValueError("failed")
    found = []
    while len(found) < 4:
        look_again(gateway)
        async with queue.process_message() as message:
            found.append(message)
    assert sorted(found) == [f"message {number}" for number in range(4)]
    assert found.index("message 0") <= 2
    await queue.close()


# --- nobody comes for it ----------------------------------------------------------------------------


async def test_what_nobody_comes_for_is_put_back(client: StreamClient, raw: redis.Redis) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 3)
    await process(queue, 1)
    await until(lambda: raw.zcard(f"{{{QUEUE}}}:retries:{GROUP}"), "it is put back")
    other = queue_of(quick_gateway(client))
    held = await taken(other)
    assert (held.message, held.processing.delivery_count, held.processing.attempts) == ("message 1", 1, 1)
    await held.end()
    assert await process(other, 1) == ["message 2"]
    await queue.close()
    await other.close()


async def test_who_comes_late_gets_it_all_the_same(client: StreamClient, raw: redis.Redis) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 3)
    await process(queue, 1)
    await until(lambda: not ahead_of(gateway) and desk_of(gateway)._slots._returner is None, "the thread has ended")
    assert await process(queue, 2) == ["message 1", "message 2"]
    await queue.close()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("leave", [RedisMessageQueue.drain, RedisMessageQueue.close])
async def test_drain_and_close_put_it_back(
    client: StreamClient, raw: redis.Redis, no_returns: None, leave: Callable[..., Any]
) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 2)
    await process(queue, 1)
    assert ahead_of(gateway)
    await leave(queue)
    assert ahead_of(gateway) == []
    other = queue_of(quick_gateway(client))
    assert await process(other, 1) == ["message 1"]
    await other.close()
    await queue.close()


async def test_what_could_not_be_put_back_is_found_by_the_next_call(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def refuse(*_: object, **__: object) -> None:
        refused.set()
        raise ConnectionLost("not now")

    monkeypatch.setattr("penstock.queue.returner.SideLane.run", refuse)
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 2)
    await process(queue, 1)
    await until(refused.is_set, "the thread has tried")
    await until(lambda: desk_of(gateway)._slots._returner is None, "the thread has ended")
    held = await taken(queue)
    assert (held.message, held.processing.delivery_count, held.processing.attempts) == ("message 1", 1, 1)
    await held.end()
    await queue.close()
    assert raw.xlen(QUEUE) == 0


async def test_who_was_frozen_does_not_begin_what_another_has_by_now(
    client: StreamClient, raw: redis.Redis, no_returns: None
) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 3)
    await process(queue, 1)
    for slot in desk_of(gateway)._slots._free:
        slot.ahead_since -= 1.0
    age(raw)
    other = queue_of(quick_gateway(client))
    stolen = await taken(other)
    assert stolen.message == "message 1"
    assert await process(queue, 1) == ["message 2"]
    await stolen.end()
    assert not stolen.processing.lease_lost
    await queue.close()
    await other.close()


async def test_a_message_that_was_taken_ahead_has_its_lease_from_then_on(
    client: StreamClient, no_returns: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Desk.__module__], "PATIENCE_S", 60.0)  # however slow this machine is
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 2)
    await process(queue, 1)
    (slot,) = [slot for slot in desk_of(gateway)._slots._free if slot.has_ahead]
    slot.ahead_since -= 0.05
    held = await taken(queue)
    (_, claim), *_ = gateway._claims.values()
    assert claim.expires_at == slot.ahead_since + 60.0
    await held.end()
    await queue.close()
