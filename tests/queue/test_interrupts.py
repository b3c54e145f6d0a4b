"""Who is told to stop takes no more work; signals are another file's subject."""

from __future__ import annotations

import threading

import pytest
import redis

from penstock import BaseGracefulInterruptHandler, EventDrivenInterruptHandler, RedisMessageQueue, StreamClient
from penstock.errors import PublishUnknown, TransientError
from penstock.testing import FaultProxy
from tests.helpers.aio import eventually, is_done, join, start
from tests.queue.stage import NAME, in_flight, make_queue, payloads, take, take_all

# --- waits and retries ------------------------------------------------------------------------------


class Flag(BaseGracefulInterruptHandler):
    """A handler of the user's own."""

    def __init__(self) -> None:
        self.is_up = False

    def is_interrupted(self) -> bool:
        return self.is_up


async def test_who_is_interrupted_takes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    stop = threading.Event()
    queue = RedisMessageQueue(NAME, client=client, interrupt=EventDrivenInterruptHandler(stop))
    await queue.publish("a")
    await queue.publish("b")
    assert await take(queue) == "a"
    stop.set()
    assert await take(queue) is None
    assert (payloads(raw), in_flight(raw)) == ([b"b"], [])
    assert await queue.publish("c") is True, "publishing goes on: what is in hand may have something to say"


async def test_a_wait_ends_soon_after_the_interrupt(client: StreamClient, raw: redis.Redis) -> None:
    stop = Flag()
    queue = make_queue(client, interrupt=stop, message_wait_interval_seconds=3_600)
    waiting = start(take, queue)
    await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
    stop.is_up = True
    assert await join(waiting) is None
    await queue.publish("hello")
    assert await take_all(make_queue(client)) == ["hello"]


async def test_what_comes_while_a_wait_is_on_its_way_to_its_end_is_not_begun(
    client: StreamClient, raw: redis.Redis
) -> None:
    stop = Flag()
    queue, other = make_queue(client, interrupt=stop, message_wait_interval_seconds=3_600), make_queue(client)
    waiting = start(take, queue)
    await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
    stop.is_up = True
    await other.publish("hello")  # the server hands it to the wait that goes on for a moment
    assert await join(waiting) is None
    processing = other.process_message()
    message = await eventually(processing.__aenter__)
    assert (message, processing.attempts) == ("hello", 1), "handed back at once, without an attempt"
    await processing.__aexit__(None, None, None)


async def test_what_is_in_hand_is_finished_after_the_interrupt(client: StreamClient, raw: redis.Redis) -> None:
    stop = Flag()
    queue = make_queue(client, interrupt=stop, enable_completed_queue=True)
    await queue.publish("hello")
    async with queue.process_message() as message:
        stop.is_up = True
        assert message == "hello"
    assert (raw.xlen(NAME), (await queue.stats()).completed) == (0, 1)


@pytest.mark.usefixtures("default_server")
async def test_retries_end_with_the_interrupt(fault_proxy: FaultProxy) -> None:
    stop = Flag()
    async with StreamClient.from_url(fault_proxy.url) as client:
        queue = make_queue(client, interrupt=stop, retry_budget_seconds=3_600)
        await queue.publish("before")
        fault_proxy.refuse()
        fault_proxy.reset_all()
        publishing = start(queue.publish, "after")
        assert not is_done(publishing)
        stop.is_up = True
        with pytest.raises((TransientError, PublishUnknown)):
            await join(publishing)


@pytest.mark.usefixtures("default_server")
async def test_an_event_handler_needs_an_event() -> None:
    for wrong in (None, True, lambda: False):
        with pytest.raises(TypeError, match=r"stop_event must have an is_set\(\) method"):
            EventDrivenInterruptHandler(wrong)  # type: ignore[arg-type]
    stop = threading.Event()
    handler = EventDrivenInterruptHandler(stop)
    assert handler.is_interrupted() is False
    stop.set()
    assert handler.is_interrupted() is True
