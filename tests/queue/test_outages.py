"""Redis goes away and comes back: waits stay bounded, nothing is lost, and the next call goes on where this one was."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from penstock import EventDrivenInterruptHandler, RedisMessageQueue, StreamClient
from penstock.errors import ConnectionFailed, ConnectionLost, FatalError, PublishUnknown, TransientError, WrongType
from penstock.events import EventName
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.helpers.ageing import Ageing
from tests.helpers.aio import eventually, join, start
from tests.queue.scenes import (
    DEAD_LETTERS,
    FAILED,
    GROUP,
    QUEUE,
    Events,
    InFlight,
    age,
    at_most_once,
    look_again,
    payloads,
    pending,
    queue_of,
    quick_gateway,
    records,
    take,
    taken,
)

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.fixture
async def shaky(fault_proxy: FaultProxy) -> AsyncIterator[StreamClient]:
    """A client behind a proxy."""
    async with StreamClient.from_url(fault_proxy.url) as client:
        yield client


@pytest.fixture
async def impatient(fault_proxy: FaultProxy) -> AsyncIterator[StreamClient]:
    """The same with little patience, for silence that must be noticed: whoever uses it has a budget for tries."""
    async with StreamClient.from_url(fault_proxy.url, socket_timeout=0.3, socket_connect_timeout=3) as client:
        yield client


async def taken_at_last(queue: RedisMessageQueue) -> InFlight:
    """Takes a message with no budget: a thread learns that its connection is broken when it uses it."""
    for _ in range(3):
        with contextlib.suppress(ConnectionLost):
            return await taken(queue)
    raise AssertionError("the connection broke again and again")


def of_script(name: str) -> bytes:
    return script(name).sha.encode()


# --- one loss after the other -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [quick_gateway, at_most_once])
async def test_a_claim_may_be_lost_again_and_again(
    shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis, make: Any
) -> None:
    queue = queue_of(make(shaky, message_wait_interval_seconds=60))
    await queue.publish("a")
    faults = [
        fault_proxy.drop_reply("XREADGROUP"),
        fault_proxy.drop_reply("XPENDING"),
        *(
            fault_proxy.drop_reply("EVALSHA", containing=of_script(name))
            for name in ("streams/take", "streams/take", "streams/begin", "streams/begin")
        ),
    ]
    held = await taken(queue)
    assert (held.message, held.number, held.processing.attempts) == ("a", 1, 1)
    assert all(fault.has_happened for fault in faults)
    await held.end()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("make", [quick_gateway, at_most_once])
@pytest.mark.parametrize("lost", ["XREADGROUP", "begin"])
async def test_without_a_budget_the_next_call_gets_what_the_lost_one_was_handed(
    shaky: StreamClient, fault_proxy: FaultProxy, make: Any, lost: str
) -> None:
    queue = queue_of(make(shaky, retry_budget_seconds=0, message_wait_interval_seconds=60))
    await queue.publish("a")
    fault_proxy.drop_reply("XREADGROUP")
    with pytest.raises(ConnectionLost):
        await take(queue)
    await queue.publish("b")
    if lost == "begin":
        for _ in range(3):  # the client itself tries thrice
            fault_proxy.drop_reply("EVALSHA", containing=of_script("streams/begin"))
        with pytest.raises(ConnectionLost):
            await take(queue)
    held = await taken(queue)
    assert (held.message, held.number, held.processing.attempts) == ("a", 1, 1)
    assert (await taken(queue)).message == "b"


@pytest.mark.parametrize("lost", ["XREADGROUP", "begin"])
async def test_closing_hands_back_what_a_lost_reply_handed_out(
    shaky: StreamClient, fault_proxy: FaultProxy, lost: str
) -> None:
    queue = queue_of(quick_gateway(shaky, retry_budget_seconds=0, message_wait_interval_seconds=60))
    await queue.publish("a")
    fault_proxy.drop_reply("XREADGROUP")
    with pytest.raises(ConnectionLost):
        await take(queue)
    if lost == "begin":
        for _ in range(3):
            fault_proxy.drop_reply("EVALSHA", containing=of_script("streams/begin"))
        with pytest.raises(ConnectionLost):
            await take(queue)
    assert await queue.drain(60)
    held = await taken(queue_of(quick_gateway(shaky)))
    assert (held.message, held.processing.attempts) == ("a", 1)


async def test_what_was_taken_from_a_dead_holder_keeps_its_count_when_the_reply_is_lost(
    shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    await queue_of(quick_gateway(shaky)).publish("a")
    dead = await taken(queue_of(quick_gateway(shaky)))
    age(raw)
    fault = fault_proxy.drop_reply("EVALSHA", containing=of_script("streams/recover"))
    held = await taken(queue_of(quick_gateway(shaky)))
    assert fault.has_happened
    assert held.number > dead.number
    assert held.processing.attempts == 2


async def test_an_end_that_could_not_be_told_is_told_by_the_next_call(
    shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    events = Events()
    queue = queue_of(quick_gateway(shaky, retry_budget_seconds=0, on_event=events))
    await queue.publish("a")
    await queue.publish("b")
    held = await taken(queue)
    fault_proxy.refuse()
    fault_proxy.reset_all()
    with pytest.raises(TransientError):
        await held.end()
    assert len(events.of(EventName.UNSETTLED)) == 1
    assert len(pending(raw)) == 1
    fault_proxy.heal()
    assert (await taken_at_last(queue)).message == "b"
    assert payloads(raw, QUEUE) == ["b"]


@pytest.mark.parametrize("has_failed", [True, False])
async def test_a_message_whose_end_could_not_be_told_keeps_its_lease_until_it_is(
    shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis, has_failed: bool
) -> None:
    gateway, lease = quick_gateway(shaky, retry_budget_seconds=0), Ageing(raw, QUEUE, GROUP)
    queue = queue_of(gateway, heartbeat_interval_seconds=0.05, retry_delay_seconds=60)
    await queue.publish("a")
    held = await taken(queue)
    fault_proxy.refuse()
    fault_proxy.reset_all()
    with pytest.raises(TransientError) if not has_failed else contextlib.nullcontext():
        await held.end(ValueError("failed") if has_failed else None)
    fault_proxy.heal()
    lease.age()
    await eventually(lease.is_renewed)
    with contextlib.suppress(TransientError):  # a thread learns that its connection is broken when it uses it
        await take(queue)
    assert await take(queue) is None
    assert payloads(raw, QUEUE) == (["a"] if has_failed else [])
    assert not gateway._consumer_of(QUEUE).leases._leases
    await queue.close()


async def test_an_end_that_can_never_be_told_does_not_stop_the_others(
    shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    gateway = quick_gateway(shaky, retry_budget_seconds=0, max_delivery_count=1)
    queue = queue_of(gateway)
    await queue.publish("a")
    await queue.publish("b")
    held = await taken(queue)
    fault_proxy.refuse()
    fault_proxy.reset_all()
    await held.end(ValueError("failed"))
    fault_proxy.heal()
    raw.set(DEAD_LETTERS, "no stream")
    await (await taken_at_last(queue)).end()
    assert payloads(raw, QUEUE) == ["a"]
    raw.delete(DEAD_LETTERS)
    age(raw)
    look_again(gateway)
    assert await take(queue) is None
    assert payloads(raw, DEAD_LETTERS) == ["a"]


async def test_an_undecodable_message_whose_dead_letter_is_refused_does_not_stop_the_others(
    shaky: StreamClient, raw: redis.Redis
) -> None:
    gateway = quick_gateway(shaky)
    queue = queue_of(gateway)
    raw.xadd(QUEUE, {"data": b"\xff"})
    await queue.publish("a")
    raw.set(DEAD_LETTERS, "no stream")
    with pytest.raises(WrongType):
        await take(queue)
    held = await taken(queue)
    assert held.message == "a"
    await held.end()
    raw.delete(DEAD_LETTERS)
    age(raw)
    look_again(gateway)
    assert await take(queue) is None
    assert [record[b"dlq_reason"] for _, record in raw.xrange(DEAD_LETTERS)] == [b"decode_error"]


# --- bounded waits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["black_hole", "refuse"])
async def test_a_wait_stays_bounded_when_redis_does_not_answer(
    impatient: StreamClient, fault_proxy: FaultProxy, how: str
) -> None:
    queue = queue_of(quick_gateway(impatient, message_wait_interval_seconds=0.5, retry_budget_seconds=600))
    await queue.publish("a")
    await (await taken(queue)).end()
    if how == "refuse":
        fault_proxy.refuse()
        fault_proxy.reset_all()
    else:
        fault_proxy.black_hole()
    # Nowhere near the budget: the wait, a command that times out, one more look.
    with pytest.raises((ConnectionLost, ConnectionFailed)):
        await join(start(take, queue))
    fault_proxy.heal()
    await queue.publish("b")
    assert (await eventually(lambda: take(queue))).message == "b"


async def test_after_the_deadline_nothing_new_is_taken_but_what_was_handed_out_is(
    impatient: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    queue = queue_of(quick_gateway(impatient, message_wait_interval_seconds=0.2, retry_initial_delay_seconds=0.01))
    await queue.publish("a")
    fault_proxy.drop_reply("XREADGROUP", ending="black_hole")  # noticed only after the deadline
    held = await taken(queue)
    assert (held.message, held.number) == ("a", 1)
    await queue.publish("b")
    fault_proxy.drop_request("XREADGROUP", ending="black_hole")
    with contextlib.suppress(ConnectionLost):
        assert await take(queue) is None
    assert [count for _, count in pending(raw).values()] == [1]
    assert (await eventually(lambda: take(queue))).message == "b"


async def test_a_call_without_a_wait_looks_once(shaky: StreamClient) -> None:
    queue = queue_of(quick_gateway(shaky, message_wait_interval_seconds=0))
    assert await take(queue) is None
    await queue.publish("a")
    assert (await taken(queue)).message == "a"


async def test_publishing_gives_up_after_its_budget_and_says_what_is_unknown(
    impatient: StreamClient, shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    patient = queue_of(quick_gateway(shaky))
    await patient.publish("a")
    await impatient.ping()  # the connection is there
    fault = fault_proxy.drop_reply("EVALSHA", containing=of_script("streams/publish"), ending="black_hole")
    fault_proxy.refuse()
    with pytest.raises(PublishUnknown):
        await queue_of(quick_gateway(impatient, retry_budget_seconds=0.2)).publish("b")
    await eventually(lambda: fault.has_happened)
    fault_proxy.heal()
    assert not await patient.publish("b")  # it was there already
    assert payloads(raw, QUEUE) == ["a", "b"]


async def test_an_outage_within_the_budget_is_not_noticed(shaky: StreamClient, fault_proxy: FaultProxy) -> None:
    events = Events()
    queue = queue_of(quick_gateway(shaky, message_wait_interval_seconds=60, on_event=events))
    await queue.publish("a")
    held = await taken(queue)
    fault_proxy.refuse()
    fault_proxy.reset_all()
    ending = start(held.end)
    publishing = start(queue.publish, "b")
    taking = start(take, queue)
    await eventually(lambda: len(events.of(EventName.TRYING_AGAIN)) >= 6)
    fault_proxy.heal()
    await join(ending)
    assert await join(publishing)
    assert (await join(taking)).message == "b"


# --- interrupts -------------------------------------------------------------------------------------


async def test_an_interrupt_ends_a_wait(shaky: StreamClient, raw: redis.Redis) -> None:
    stop = threading.Event()
    gateway = quick_gateway(
        shaky, message_wait_interval_seconds=60, interrupt=EventDrivenInterruptHandler(stop), retry_budget_seconds=60
    )
    waiting = start(take, queue_of(gateway))
    await eventually(lambda: raw.info("clients")["blocked_clients"])
    stop.set()
    assert await join(waiting) is None


async def test_an_interrupt_ends_the_tries_and_the_message_is_not_lost(
    shaky: StreamClient, fault_proxy: FaultProxy
) -> None:
    stop = threading.Event()
    gateway = quick_gateway(
        shaky, message_wait_interval_seconds=60, interrupt=EventDrivenInterruptHandler(stop), retry_budget_seconds=60
    )
    queue = queue_of(gateway)
    await queue.publish("first")
    await (await taken(queue)).end()
    await queue.publish("a")
    faults = [fault_proxy.drop_reply("XREADGROUP"), fault_proxy.drop_reply("XPENDING")]
    fault_proxy.refuse()  # what is open stays, until the replies are lost with it
    waiting = start(take, queue)
    await eventually(lambda: all(fault.has_happened for fault in faults))
    stop.set()
    with pytest.raises(TransientError):
        await join(waiting)
    fault_proxy.heal()
    assert await take(queue) is None  # still interrupted
    stop.clear()
    held = await taken(queue)
    assert (held.message, held.number, held.processing.attempts) == ("a", 1, 1)


# --- what can never be settled ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["the handler's log", "the dead letters"])
async def test_messages_that_cannot_be_settled_keep_no_connection(
    client: StreamClient, raw: redis.Redis, how: str
) -> None:
    raw.set(FAILED, "no stream")
    raw.set(DEAD_LETTERS, "no stream")
    is_terminal = how == "the handler's log"
    options: dict[str, Any] = {"on_failure": "terminal", "enable_failed_queue": True} if is_terminal else {}
    queue = queue_of(quick_gateway(client, max_delivery_count=1), **options)
    for n in range(5):
        await queue.publish(str(n))
    await (await taken(queue)).end(ValueError("failed"))
    before = len(raw.client_list())
    for _ in range(4):
        await (await taken(queue)).end(ValueError("failed"))
    assert len(pending(raw)) == 5
    await eventually(lambda: len(raw.client_list()) <= before)


async def test_an_end_that_is_refused_after_an_outage_keeps_no_connection(
    shaky: StreamClient, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    queue = queue_of(quick_gateway(shaky, retry_budget_seconds=0, max_delivery_count=1))
    await queue.publish("a")
    held = await taken(queue)
    for _ in range(3):
        fault_proxy.drop_request("EVALSHA", containing=of_script("streams/dead_letter"))
    await held.end(ValueError("failed"))
    raw.set(DEAD_LETTERS, "no stream")
    await queue.publish("b")
    await taken_at_last(queue)
    await eventually(lambda: fault_proxy.connections == 2)  # that of the commands, and that of "b"


@pytest.mark.parametrize("how", ["undecodable", "exhausted", "fatal"])
async def test_a_dead_letter_for_which_the_server_has_no_room_is_written_later(
    client: StreamClient, raw: redis.Redis, how: str
) -> None:
    gateway = quick_gateway(client, max_delivery_count=1)
    queue = queue_of(gateway)
    await queue.publish("a")
    held = await taken(queue)
    if how == "undecodable":
        await held.end()
        raw.xadd(QUEUE, {"data": b"\xff"})
    await queue.publish("b")
    if how == "exhausted":
        age(raw)
    raw.config_set("maxmemory", 1)
    if how == "fatal":
        await held.end(FatalError("never"))
    try:
        look_again(gateway)
        behind = await taken(queue)  # gets no error of another message
        assert behind.message == "b"
        await behind.end()
        assert not raw.exists(DEAD_LETTERS)
    finally:
        raw.config_set("maxmemory", 0)
    make_due(raw)
    look_again(gateway)
    assert await take(queue) is None
    reason = {"undecodable": "decode_error", "exhausted": "max_deliveries", "fatal": "max_deliveries"}[how]
    assert [record["dlq_reason"].decode() for record in records(raw, DEAD_LETTERS)] == [reason]


def make_due(raw: redis.Redis) -> None:
    """Has all parked messages wait no longer."""
    retries = f"{{{QUEUE}}}:retries:{GROUP}"
    assert raw.zrange(retries, 0, -1)
    for entry_id in raw.zrange(retries, 0, -1):
        raw.zadd(retries, {entry_id: 1})
