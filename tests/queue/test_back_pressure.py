"""A full queue follows the policy that was chosen; what is in flight is never dropped."""

from __future__ import annotations

import pytest
import redis

from penstock import EventDrivenInterruptHandler, RedisMessageQueue, StreamClient
from penstock.errors import QueueFull, StreamFull
from penstock.events import Event, EventName
from tests.helpers.aio import eventually, is_done, join, outcomes, start
from tests.helpers.commandstats import calls
from tests.queue.stage import NAME, fail, in_flight, make_queue, markers, of_kind, payloads, take, take_all

# --- raise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deduplication", [True, False])
async def test_a_full_queue_refuses_what_does_not_fit_and_says_what_to_do(
    client: StreamClient, raw: redis.Redis, deduplication: bool
) -> None:
    events: list[Event] = []
    queue = RedisMessageQueue(
        NAME, client=client, deduplication=deduplication, max_pending_length=3, on_event=events.append
    )
    for n in range(3):
        assert await queue.publish(f"message {n}") is True
    with pytest.raises(QueueFull, match=r"max_pending_length=3; add consumers.*'block' or 'drop_oldest'") as caught:
        await queue.publish("message 3")
    assert isinstance(caught.value, StreamFull)
    assert raw.xlen(NAME) == 3
    assert len(markers(raw)) == (3 if deduplication else 0), "what was refused leaves no key"
    assert len(of_kind(events, EventName.REJECTED)) == 1
    await take(queue)
    assert await queue.publish("message 3") is True, "it may be published when there is room"


async def test_a_duplicate_is_told_though_the_queue_is_full(client: StreamClient) -> None:
    queue = make_queue(client, max_pending_length=1)
    await queue.publish("hello")
    assert await queue.publish("hello") is False


async def test_what_is_in_flight_or_waits_for_a_retry_takes_room(client: StreamClient) -> None:
    queue = make_queue(client, max_pending_length=2, retry_delay_seconds=60)
    await queue.publish("a")
    await fail(queue)
    await queue.publish("b")
    async with queue.process_message():
        with pytest.raises(QueueFull):
            await queue.publish("c")
    assert await queue.publish("c") is True


async def test_many_at_once_do_not_exceed_the_limit(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=10, deduplication=False)
    answers = await outcomes([start(queue.publish, f"message {n}") for n in range(30)])
    assert (answers.count(True), raw.xlen(NAME)) == (10, 10)
    assert all(answer is True or isinstance(answer, QueueFull) for answer in answers)


# --- block ------------------------------------------------------------------------------------------


async def test_block_waits_for_room(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=2, pending_overload_policy="block")
    await queue.publish("a")
    await queue.publish("b")
    tries = calls(raw, "evalsha")
    publishing = start(queue.publish, "c")
    await eventually(lambda: calls(raw, "evalsha") >= tries + 3)
    assert not is_done(publishing)
    assert raw.xlen(NAME) == 2
    consumer = make_queue(client)
    assert await take(consumer) == "a"
    assert await join(publishing) is True
    assert await take_all(consumer) == ["b", "c"]


async def test_block_gives_up_after_its_time(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(
        client, max_pending_length=1, pending_overload_policy="block", pending_block_timeout_seconds=0.05
    )
    await queue.publish("a")
    with pytest.raises(QueueFull, match="max_pending_length=1"):
        await queue.publish("b")
    assert (payloads(raw), len(markers(raw))) == ([b"a"], 1)


@pytest.mark.usefixtures("default_server")
async def test_block_ends_when_it_is_interrupted(client: StreamClient, raw: redis.Redis) -> None:
    import threading

    stop = threading.Event()
    queue = make_queue(
        client, max_pending_length=1, pending_overload_policy="block", pending_block_timeout_seconds=3_600,
        interrupt=EventDrivenInterruptHandler(stop),
    )  # fmt: skip
    await queue.publish("a")
    tries = calls(raw, "evalsha")
    publishing = start(queue.publish, "b")
    await eventually(lambda: calls(raw, "evalsha") >= tries + 3)
    assert not is_done(publishing)
    stop.set()
    [answer] = await outcomes([publishing])
    assert isinstance(answer, QueueFull)


# --- drop_oldest ------------------------------------------------------------------------------------


async def test_drop_oldest_makes_room_and_tells_what_it_dropped(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Event] = []
    queue = RedisMessageQueue(
        NAME, client=client, max_pending_length=3, pending_overload_policy="drop_oldest", on_event=events.append
    )
    for n in range(3):
        await queue.publish(f"message {n}")
    first = raw.xrange(NAME)[0][0].decode()
    assert await queue.publish("message 3") is True
    assert payloads(raw) == [b"message 1", b"message 2", b"message 3"]
    [event] = of_kind(events, EventName.DROPPED)
    assert (event.fields["count"], event.fields["ids"]) == (1, [first])
    assert len(markers(raw)) == 3, "the key of the dropped one is free again"
    assert await queue.publish("message 0") is True


async def test_drop_oldest_never_drops_what_is_in_flight(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=3, pending_overload_policy="drop_oldest")
    for n in range(3):
        await queue.publish(f"message {n}")
    async with queue.process_message() as message:
        for n in range(3, 8):
            assert await queue.publish(f"message {n}") is True
        assert message == "message 0"
        assert (len(in_flight(raw)), payloads(raw)) == (1, [b"message 0", b"message 6", b"message 7"])
    assert await take_all(queue) == ["message 6", "message 7"]


async def test_drop_oldest_never_drops_what_waits_for_its_retry(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=2, pending_overload_policy="drop_oldest", retry_delay_seconds=60)
    await queue.publish("a")
    await fail(queue)
    for text in ("b", "c", "d"):
        await queue.publish(text)
    assert payloads(raw) == [b"a", b"d"]
    assert (await queue.stats()).retrying == 1


async def test_when_all_is_in_flight_the_new_message_is_refused(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=1, pending_overload_policy="drop_oldest")
    await queue.publish("a")
    async with queue.process_message():
        with pytest.raises(QueueFull, match=r"all of them are being processed.*raise max_pending_length"):
            await queue.publish("b")
        assert (payloads(raw), len(markers(raw))) == ([b"a"], 1)
    assert await queue.publish("b") is True


@pytest.mark.usefixtures("default_server")
async def test_a_duplicate_drops_nothing(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=2, pending_overload_policy="drop_oldest")
    await queue.publish("a")
    await queue.publish("b")
    assert await queue.publish("b") is False
    assert payloads(raw) == [b"a", b"b"]


async def test_many_at_once_keep_the_newest(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=10, pending_overload_policy="drop_oldest")
    answers = await outcomes([start(queue.publish, f"message {n}") for n in range(40)])
    assert [answer for answer in answers if answer is not True] == []
    assert raw.xlen(NAME) == 10
    assert len(markers(raw)) == 10
    await eventually(lambda: in_flight(raw) == [])
