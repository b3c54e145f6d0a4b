"""Who asks for the next message as soon as one has ended gets it together with the end, and it waits for nobody else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.delivery.group_commands import GroupCommands
from penstock.errors import ConnectionLost
from penstock.queue.consumer_slots import ConsumerSlots
from penstock.queue.queue_consumer import QueueConsumer
from penstock.redis.scripts import ScriptRunner, script
from penstock.runtime.aio import Flag
from penstock.testing import Fault, FaultProxy
from tests.helpers.aio import eventually
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


def consumer_of(gateway: RedisGateway) -> QueueConsumer:
    return gateway._consumer_of(QUEUE)


def ahead_of(gateway: RedisGateway) -> list[str]:
    return [slot.ahead[0] for slot in consumer_of(gateway).slots._free if slot.ahead is not None]


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
    monkeypatch.setattr(ConsumerSlots, "_watch", lambda _self: None)


@pytest.fixture
def slow_callers(no_returns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken ahead waits for its caller, however slow the machine is."""
    monkeypatch.setattr(sys.modules[QueueConsumer.__module__], "PATIENCE_S", 60.0)


@dataclass
class HeldReturn:
    """The step that puts a message back, held until a caller waits for it: before it is taken, or after it."""

    comes_after: bool = False
    error: Exception | None = None
    has_begun: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held_return(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldReturn]:
    held, put_back, wait = HeldReturn(), ScriptRunner.run, Flag.wait

    def put_back_when_somebody_waits(*args: Any) -> Any:
        answer = put_back(*args) if held.comes_after else None
        held.has_begun.set()
        assert held.may_end.wait(30)
        if held.error is not None:
            raise held.error
        return answer if held.comes_after else put_back(*args)

    async def wait_and_have_it_put_back(*args: Any) -> bool:
        held.may_end.set()
        return await wait(*args)

    monkeypatch.setattr(ScriptRunner, "run", put_back_when_somebody_waits)
    monkeypatch.setattr(Flag, "wait", wait_and_have_it_put_back)
    yield held
    held.may_end.set()


# --- what it is for ---------------------------------------------------------------------------------


async def test_a_loop_gets_every_message_once_and_in_order(client: StreamClient, raw: redis.Redis) -> None:
    queue = queue_of(quick_gateway(client))
    messages = await publish(queue, 500)
    assert await process(queue, 500) == messages
    assert raw.xlen(QUEUE) == 0
    assert pending(raw) == {}
    await queue.close()


async def test_the_next_message_comes_with_the_end_of_the_one_before(
    fault_proxy: FaultProxy, raw: redis.Redis, slow_callers: None
) -> None:
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
    consumer_of(gateway)._ended_s -= 1.0
    await process(queue, 1)
    assert consumer_of(gateway)._quick_turns == 0
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
    consumer_of(gateway)._quick_turns = 1_000_000
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
    await eventually(lambda: raw.zcard(f"{{{QUEUE}}}:retries:{GROUP}"))
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
    await eventually(lambda: not ahead_of(gateway) and consumer_of(gateway).slots._return_thread is None)
    assert await process(queue, 2) == ["message 1", "message 2"]
    await queue.close()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("error", [None, ConnectionLost("not now")])
@pytest.mark.parametrize("comes_after", [False, True])
async def test_who_comes_while_it_is_put_back_gets_it_before_any_newer_one(
    client: StreamClient, raw: redis.Redis, held_return: HeldReturn, comes_after: bool, error: Exception | None
) -> None:
    held_return.comes_after, held_return.error = comes_after, error
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 4)
    await process(queue, 1)
    await eventually(held_return.has_begun.is_set)
    held = await taken(queue)
    assert (held.message, held.processing.delivery_count, held.processing.attempts) == ("message 1", 1, 1)
    await held.end()
    assert await process(queue, 2) == ["message 2", "message 3"]
    await queue.close()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("leave", [RedisMessageQueue.drain, RedisMessageQueue.close])
async def test_drain_and_close_wait_until_it_is_put_back(
    client: StreamClient, held_return: HeldReturn, leave: Callable[..., Any]
) -> None:
    queue = queue_of(always_ahead(client))
    await publish(queue, 3)
    await process(queue, 1)
    await eventually(held_return.has_begun.is_set)
    await leave(queue)
    other = queue_of(quick_gateway(client))
    assert await process(other, 2) == ["message 1", "message 2"]
    await other.close()
    await queue.close()


async def test_nothing_newer_is_taken_ahead_while_it_is_put_back(client: StreamClient, held_return: HeldReturn) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 4)
    first = await taken(queue)
    second = await taken(queue)
    await first.end()
    await eventually(held_return.has_begun.is_set)
    await second.end()
    assert ahead_of(gateway) == []
    assert await process(queue, 2) == ["message 2", "message 3"]
    await queue.close()


# async only
async def test_who_is_cancelled_while_it_is_put_back_takes_nothing(
    client: StreamClient, raw: redis.Redis, held_return: HeldReturn, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_waiting = asyncio.Event()

    async def wait_for_ever(*_: object) -> bool:
        is_waiting.set()
        return await asyncio.Event().wait()

    queue = queue_of(always_ahead(client))
    await publish(queue, 3)
    await process(queue, 1)
    await eventually(held_return.has_begun.is_set)
    with monkeypatch.context() as patch:
        patch.setattr(Flag, "wait", wait_for_ever)
        caller = asyncio.create_task(taken(queue))
        await eventually(is_waiting.is_set)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert await process(queue, 2) == ["message 1", "message 2"]
    await queue.close()
    assert raw.xlen(QUEUE) == 0


# end async only
async def test_a_queue_that_is_used_on_after_close_gets_first_what_close_put_back(
    client: StreamClient, no_returns: None
) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 3)
    await process(queue, 1)
    assert ahead_of(gateway)
    await queue.close()
    assert await process(queue, 2) == ["message 1", "message 2"]
    await queue.close()


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

    monkeypatch.setattr("penstock.queue.consumer_slots.ScriptRunner.run", refuse)
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 2)
    await process(queue, 1)
    await eventually(refused.is_set)
    await eventually(lambda: consumer_of(gateway).slots._return_thread is None)
    held = await taken(queue)
    assert (held.message, held.processing.delivery_count, held.processing.attempts) == ("message 1", 1, 1)
    await held.end()
    await queue.close()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("lose", [FaultProxy.drop_request, FaultProxy.drop_reply])
async def test_a_return_without_an_answer_does_not_hold_the_next_caller_up_for_ever(
    fault_proxy: FaultProxy, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, lose: Callable[..., Fault]
) -> None:
    monkeypatch.setattr("penstock.queue.consumer_slots._LONGEST_RETURN_S", 0.2)
    raw.script_load(script("queue/hand_back").source)
    async with StreamClient.from_url(fault_proxy.url) as client:
        queue = queue_of(always_ahead(client))
        await publish(queue, 3)
        fault = lose(fault_proxy, "EVALSHA", containing=script("queue/hand_back").sha.encode(), ending="black_hole")
        await process(queue, 1)
        await eventually(lambda: fault.has_happened)
        assert await process(queue, 2) == ["message 1", "message 2"]
        await queue.close()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("last_step", ["take", "begin"])
async def test_a_late_return_does_not_take_a_message_away_from_who_processes_it(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, last_step: str
) -> None:
    sent: list[Any] = []
    lane = ScriptRunner(client.settings, QUEUE)
    run, step = ScriptRunner.run, getattr(GroupCommands, last_step)

    def give_up(_lane: ScriptRunner, *args: Any) -> None:
        sent.append(args)
        raise ConnectionLost("no reply in time")

    async def and_then_it_arrives(*args: Any, **more: Any) -> Any:
        answer = await step(*args, **more)
        assert run(lane, *sent.pop()) == 0
        return answer

    monkeypatch.setattr(ScriptRunner, "run", give_up)
    monkeypatch.setattr(GroupCommands, last_step, and_then_it_arrives)
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 2)
    await process(queue, 1)
    await eventually(lambda: sent and consumer_of(gateway).slots._return_thread is None)
    held = await taken(queue)
    assert (held.message, held.processing.delivery_count, held.processing.attempts) == ("message 1", 1, 1)
    assert sent == []
    assert raw.zcard(f"{{{QUEUE}}}:retries:{GROUP}") == 0
    await held.end()
    assert raw.xlen(QUEUE) == 0
    await queue.close()
    lane.close()


async def test_who_was_frozen_does_not_begin_what_another_has_by_now(
    client: StreamClient, raw: redis.Redis, no_returns: None
) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 3)
    await process(queue, 1)
    for slot in consumer_of(gateway).slots._free:
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
    client: StreamClient, slow_callers: None
) -> None:
    gateway = always_ahead(client)
    queue = queue_of(gateway)
    await publish(queue, 2)
    await process(queue, 1)
    (slot,) = [slot for slot in consumer_of(gateway).slots._free if slot.ahead is not None]
    slot.ahead_since -= 0.05
    held = await taken(queue)
    (delivery,) = gateway._held.values()
    assert delivery.expires_at == slot.ahead_since + 60.0
    await held.end()
    await queue.close()
