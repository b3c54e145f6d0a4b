"""Operators see what is where, look without taking, put dead letters back, and empty what they name."""

from __future__ import annotations

import pytest
import redis

from penstock import QueueStats, RedisMessageQueue, StreamClient
from penstock.errors import ConfigurationError, FatalError, QueueDrained
from penstock.events import Event, EventName
from penstock.queue.model import GROUP
from tests.helpers.aio import Event as Signal
from tests.helpers.aio import eventually, is_done, join, outcomes, start, wait_for
from tests.helpers.commandstats import calls
from tests.queue.stage import (
    COMPLETED,
    DEAD_LETTERS,
    FAILED,
    NAME,
    fail,
    in_flight,
    make_queue,
    of_kind,
    payloads,
    take,
    take_all,
)

pytestmark = pytest.mark.every_server


async def fill(queue: RedisMessageQueue, count: int, start_at: int = 0) -> None:
    for n in range(start_at, start_at + count):
        await queue.publish(f"message {n}")


async def dead_letter(queue: RedisMessageQueue, count: int) -> None:
    """Publishes messages and makes dead letters of them."""
    for n in range(count):
        await queue.publish(f"dead {n}")
        await fail(queue, FatalError("never"))


# --- stats ------------------------------------------------------------------------------------------


async def test_a_queue_that_nobody_has_used_is_empty(client: StreamClient) -> None:
    assert await make_queue(client).stats() == QueueStats(0, 0, 0, None, None, 0)


async def test_stats_tell_where_every_message_is(client: StreamClient) -> None:
    queue = make_queue(client, enable_completed_queue=True, enable_failed_queue=True, retry_delay_seconds=60)
    await dead_letter(queue, 2)
    await fill(queue, 6)
    assert await queue.stats() == QueueStats(6, 0, 0, 0, 2, 2)
    await take(queue)
    await fail(queue)
    async with queue.process_message(), queue.process_message():
        assert await queue.stats() == QueueStats(2, 2, 1, 1, 3, 2)
    assert await queue.stats() == QueueStats(2, 0, 1, 3, 3, 2)


async def test_stats_are_right_beside_another_group(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await fill(queue, 5)
    raw.xgroup_create(NAME, "archive", "0")
    await take(queue)
    await take(queue)
    async with queue.process_message():
        assert await queue.stats() == QueueStats(2, 1, 0, None, None, 0)
    assert raw.xlen(NAME) == 5


# --- peek -------------------------------------------------------------------------------------------


async def test_a_look_at_the_pending_takes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    assert await queue.peek() == []
    await fill(queue, 5)
    assert await queue.peek() == ["message 0"]
    assert await queue.peek(3) == ["message 0", "message 1", "message 2"]
    assert await queue.peek(100) == [f"message {n}" for n in range(5)]
    assert in_flight(raw) == []
    await take(queue)
    assert await queue.peek(2) == ["message 1", "message 2"]


async def test_a_look_at_what_is_processed_needs_no_consumer_to_have_come(client: StreamClient) -> None:
    queue = make_queue(client)
    assert await queue.peek(source="processing") == []
    await fill(queue, 1)
    assert await queue.peek(source="processing") == []


async def test_a_look_at_each_state_shows_what_stats_count(client: StreamClient) -> None:
    queue = make_queue(client, enable_completed_queue=True, enable_failed_queue=True, retry_delay_seconds=60)
    await dead_letter(queue, 2)
    await fill(queue, 4)
    await take(queue)
    await fail(queue)
    async with queue.process_message():
        assert await queue.peek(9, source="pending") == ["message 3"]
        assert await queue.peek(9, source="processing") == ["message 2"]
        assert await queue.peek(9, source="retrying") == ["message 1"]
        assert await queue.peek(9, source="completed") == ["message 0"]
        assert await queue.peek(9, source="failed") == ["message 1", "dead 1", "dead 0"], "of the logs the newest"
        assert await queue.peek(1, source="dead_letter") == ["dead 0"], "the one that is redriven first"


@pytest.mark.usefixtures("default_server")
async def test_a_look_goes_through_the_queue_in_small_steps(client: StreamClient, raw: redis.Redis) -> None:
    queue, large = make_queue(client), "x" * 300_000
    await fill(queue, 1)
    await take(queue)
    for n in range(20):
        raw.xadd(NAME, {"data": f"{n} {large}"})
    before = calls(raw, "evalsha")
    assert [text.split()[0] for text in map(str, await queue.peek(20))] == [str(n) for n in range(20)]
    assert calls(raw, "evalsha") - before >= 10, "a script reads no more than a few of them"
    raw.xreadgroup(GROUP, "someone", {NAME: ">"})
    for n in range(1_300):
        raw.xadd(NAME, {"data": f"waits {n}"})
    [(_, rows)] = raw.xreadgroup(GROUP, "someone", {NAME: ">"})
    raw.zadd(client.keys(NAME).retries(GROUP), {entry_id: 10**13 for entry_id, _ in rows})
    await fill(queue, 1, 1)
    raw.xreadgroup(GROUP, "someone", {NAME: ">"})
    assert await queue.peek(2_000, source="retrying") == [f"waits {n}" for n in range(1_300)]
    assert (await queue.peek(2_000, source="processing"))[20:] == ["message 1"]


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    ("source", "log"), [("completed", COMPLETED), ("failed", FAILED), ("dead_letter", DEAD_LETTERS)]
)
async def test_a_look_at_a_log_reads_large_records_in_small_steps(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, source: str, log: str
) -> None:
    queue, large = make_queue(client), "x" * 100_000
    for n in range(100):
        raw.xadd(log, {"data": f"{n} {large}"})
    read = list[int]()
    really = type(client).call

    async def counted(self: StreamClient, key: str, *words: object, **options: object) -> object:
        reply = await really(self, key, *words, **options)  # type: ignore[arg-type]
        if words[0] in {"XRANGE", "XREVRANGE"}:
            read.append(len(reply))
        return reply

    monkeypatch.setattr(type(client), "call", counted)
    found = [int(str(text).split()[0]) for text in await queue.peek(90, source=source)]
    assert found == (list(range(90)) if source == "dead_letter" else list(range(99, 9, -1)))
    assert max(read) <= 20, "a command reads no more than about a megabyte"
    assert len(await queue.peek(10**6, source=source)) == 100
    assert len(await queue.peek(3, source=source)) == 3


@pytest.mark.usefixtures("default_server")
async def test_a_wrong_look_names_what_is_right(client: StreamClient) -> None:
    queue = make_queue(client)
    with pytest.raises(ConfigurationError, match="source='done' must be one of pending, processing"):
        await queue.peek(source="done")
    with pytest.raises(ValueError, match="count=0 must be positive"):
        await queue.peek(0)
    with pytest.raises(TypeError, match="count='3' must be a whole number"):
        await queue.peek("3")  # type: ignore[arg-type]


# --- redrive ----------------------------------------------------------------------------------------


async def test_redriven_messages_are_new_ones_and_come_in_their_old_order(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client)
    await dead_letter(queue, 3)
    assert await queue.redrive_dead_letters() == 3
    assert raw.xlen(DEAD_LETTERS) == 0
    processing = queue.process_message()
    async with processing as message:
        assert (message, processing.delivery_count, processing.attempts) == ("dead 0", 1, 1)
    assert await take_all(queue) == ["dead 1", "dead 2"]


async def test_so_many_may_be_redriven_the_oldest_first(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await dead_letter(queue, 5)
    assert await queue.redrive_dead_letters(2) == 2
    assert payloads(raw, DEAD_LETTERS) == [b"dead 2", b"dead 3", b"dead 4"]
    assert payloads(raw) == [b"dead 0", b"dead 1"]
    assert await queue.redrive_dead_letters(max_messages=100) == 3


async def test_two_operators_redrive_each_dead_letter_once(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await dead_letter(queue, 10)
    counts = await outcomes([start(queue.redrive_dead_letters) for _ in range(3)])
    assert sum(counts) == 10
    assert sorted(payloads(raw)) == sorted(b"dead %d" % n for n in range(10))


@pytest.mark.usefixtures("default_server")
async def test_redriving_nothing_is_no_error_and_a_wrong_number_is(client: StreamClient) -> None:
    queue = make_queue(client)
    assert await queue.redrive_dead_letters() == 0
    with pytest.raises(ValueError, match="max_messages=0 must be positive"):
        await queue.redrive_dead_letters(0)
    with pytest.raises(TypeError, match="max_messages=True must be a whole number"):
        await queue.redrive_dead_letters(True)


@pytest.mark.usefixtures("default_server")
async def test_what_dies_again_is_a_dead_letter_again(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await dead_letter(queue, 1)
    await queue.redrive_dead_letters()
    await fail(queue, FatalError("never"))
    [(_, record)] = raw.xrange(DEAD_LETTERS)
    assert record[b"redrives"] == b"1"
    assert record[b"origin"].startswith(b"orders/")


# --- purge ------------------------------------------------------------------------------------------


async def test_purging_the_pending_leaves_what_is_in_flight(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await fill(queue, 5)
    async with queue.process_message():
        assert await queue.purge(target="pending") == 4
        assert len(in_flight(raw)) == 1
        assert await queue.stats() == QueueStats(0, 1, 0, None, None, 0)
    assert raw.xlen(NAME) == 0


async def test_purging_what_nobody_has_ever_read(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    assert await queue.purge(target="pending") == 0
    await fill(queue, 1_201)
    assert await queue.purge(target="pending") == 1_201
    assert raw.xlen(NAME) == 0
    await queue.publish("after")
    assert await take(queue) == "after"


async def test_purging_a_log_or_the_dead_letters_empties_it(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, enable_completed_queue=True, enable_failed_queue=True)
    await dead_letter(queue, 2)
    await fill(queue, 3)
    await take(queue)
    assert await queue.purge(target="completed") == 1
    assert await queue.purge(target="failed") == 2
    assert await queue.purge(target="dead_letter") == 2
    assert [raw.xlen(key) for key in (COMPLETED, FAILED, DEAD_LETTERS, NAME)] == [0, 0, 0, 2]


@pytest.mark.usefixtures("default_server")
async def test_a_wrong_target_is_refused_and_deletes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    await fill(queue, 1)
    with pytest.raises(ConfigurationError, match="messages in processing cannot be purged; use one of pending"):
        await queue.purge(target="processing")
    with pytest.raises(ConfigurationError, match="target='all': use one of"):
        await queue.purge(target="all")
    assert raw.xlen(NAME) == 1


# --- drain ------------------------------------------------------------------------------------------


async def test_a_drained_queue_takes_nothing_in_or_out(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Event] = []
    queue = make_queue(client, on_event=events.append)
    await queue.publish("hello")
    assert not queue.is_draining
    assert await queue.drain() is True
    assert queue.is_draining
    with pytest.raises(QueueDrained, match="create a new"):
        await queue.publish("more")
    assert await take(queue) is None
    assert payloads(raw) == [b"hello"]
    assert [event.fields["is_complete"] for event in of_kind(events, EventName.DRAINED)] == [True]
    assert await take(make_queue(client)) == "hello", "another queue object goes on"


async def test_drain_waits_for_what_is_in_hand(client: StreamClient, raw: redis.Redis) -> None:
    queue, began, may_end = make_queue(client), Signal(), Signal()
    ended: list[str] = []

    async def work() -> None:
        async with queue.process_message():
            began.set()
            await wait_for(may_end)
            ended.append("working")

    async def drain() -> bool:
        is_drained = await queue.drain()
        ended.append("draining")
        return is_drained

    await queue.publish("hello")
    working = start(work)
    await wait_for(began)
    draining = start(drain)
    await eventually(lambda: queue.is_draining)
    may_end.set()
    assert await join(draining) is True
    await join(working)
    assert ended == ["working", "draining"]
    assert raw.xlen(NAME) == 0


@pytest.mark.usefixtures("default_server")
async def test_drain_gives_up_when_its_time_is_over_and_says_so(client: StreamClient) -> None:
    events: list[Event] = []
    queue, began, may_end = make_queue(client, on_event=events.append), Signal(), Signal()

    async def work() -> None:
        async with queue.process_message():
            began.set()
            await wait_for(may_end)

    await queue.publish("hello")
    working = start(work)
    await wait_for(began)
    assert await queue.drain(timeout=0.05) is False
    assert await queue.drain(timeout=0) is False
    may_end.set()
    await join(working)
    assert await queue.drain(timeout=30) is True
    assert [event.fields["is_complete"] for event in of_kind(events, EventName.DRAINED)] == [False, False, True]


@pytest.mark.usefixtures("default_server")
async def test_who_drains_from_within_a_handler_does_not_wait_for_itself(client: StreamClient) -> None:
    queue = make_queue(client)
    await queue.publish("hello")
    async with queue.process_message():
        assert await queue.drain(timeout=30) is True


async def test_drain_ends_the_waits_of_others_and_they_take_nothing_more(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = RedisMessageQueue(NAME, client=client)
    waiting = [start(take, queue) for _ in range(3)]
    await eventually(lambda: raw.info("clients")["blocked_clients"] == 3)
    assert await queue.drain() is True
    assert [is_done(wait) for wait in waiting] == [True] * 3, "nobody waits any more when it is drained"
    await make_queue(client).publish("after")
    assert await outcomes(waiting) == [None] * 3
    assert payloads(raw) == [b"after"]


@pytest.mark.usefixtures("default_server")
async def test_what_comes_while_the_waits_are_ending_is_not_begun(client: StreamClient) -> None:
    queue, other = RedisMessageQueue(NAME, client=client), make_queue(client, message_wait_interval_seconds=30)
    taken: list[object] = []

    async def work() -> None:
        async with queue.process_message() as message:
            taken.append((queue.is_draining, message))

    await queue.publish("first")
    await take(queue)
    for turn in range(3):
        working = start(work)
        draining = start(queue.drain)
        await other.publish(f"message {turn}")
        await join(draining)
        await join(working)
        queue = RedisMessageQueue(NAME, client=client)
    late = [message for is_draining, message in taken if is_draining and message is not None]
    assert late == []
    assert len(await take_all(make_queue(client))) + len([m for _, m in taken if m is not None]) == 3


@pytest.mark.usefixtures("default_server")
async def test_closing_twice_is_no_error_and_the_client_stays_open(client: StreamClient) -> None:
    queue = make_queue(client)
    await queue.publish("hello")
    await take(queue)
    await queue.close()
    await queue.close()
    assert await client.ping()
