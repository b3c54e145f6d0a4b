"""A group that an administrator destroys is created again where it had come to; that is told, and repeats nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import redis

from penstock import ConsumerGroup, StreamClient, StreamConsumer, StreamMessage
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.ids import before
from tests.helpers.aio import Event, eventually, wait_for
from tests.helpers.commandstats import calls
from tests.streams.stage import GROUP, STREAM, Recorder, all_ids, of_kind, pending_ids, publish, quick, read_as, running


def destroy_group(raw: redis.Redis) -> None:
    raw.xgroup_destroy(STREAM, GROUP)


def delete_stream(raw: redis.Redis) -> None:
    raw.delete(STREAM)


def flush_all(raw: redis.Redis) -> None:
    raw.flushall()


ACCIDENTS = [destroy_group, delete_stream, flush_all]


async def test_nothing_that_was_acknowledged_comes_again(client: StreamClient, raw: redis.Redis) -> None:
    ids = await publish(client, range(50))
    events: list[Occurrence] = []
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 50)
        destroy_group(raw)
        await eventually(lambda: of_kind(events, EventName.GROUP_LOST))
        await publish(client, range(50, 60))
        await eventually(lambda: consumer.metrics().total_acked == 60)
    assert handler.seen == list(range(60))
    assert [event.fields["position"] for event in of_kind(events, EventName.GROUP_LOST)] == [ids[-1]]


@pytest.mark.usefixtures("default_server")
async def test_what_is_done_beside_a_long_handler_is_soon_on_record(client: StreamClient, raw: redis.Redis) -> None:
    ids = await publish(client, range(3))
    go_on = Event()

    async def handle(message: StreamMessage) -> None:
        if message.data == 1:
            await eventually(lambda: ids[0] not in pending_ids(raw))  # right after the record that this one is in
        elif message.data == 2:
            await wait_for(go_on)

    consumer = StreamConsumer(client, STREAM, quick(min_idle_claim_ms=60_000), message_handler=handle)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 2)
        record = " ".join([ids[2], ids[2]]).encode()  # handed out up to the last, and the last is pending
        await eventually(lambda: raw.get(f"{{{STREAM}}}:position:{GROUP}") == record)
        go_on.set()
        await eventually(lambda: consumer.metrics().total_acked == 3)


async def test_what_was_not_acknowledged_comes_again_and_only_that(client: StreamClient, raw: redis.Redis) -> None:
    ids = await publish(client, range(20))
    record = " ".join([ids[19], ids[3], ids[11], ids[19]]).encode()  # handed out up to the last, and three are pending

    def leave_some(messages: list[StreamMessage]) -> list[str]:
        return [message.id for message in messages if message.attempts > 1 or message.data not in (3, 11, 19)]

    handler = Recorder(leave_some)
    events: list[Occurrence] = []
    delay = {"retry_initial_delay_ms": 2_000, "retry_max_delay_ms": 2_000}
    config = quick(**delay, recovery_interval_ms=100)
    consumer = StreamConsumer(client, STREAM, config, handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 17 and consumer.metrics().total_retried == 3)
        await eventually(lambda: raw.get(f"{{{STREAM}}}:position:{GROUP}") == record)
        destroy_group(raw)
        await eventually(lambda: of_kind(events, EventName.GROUP_LOST))
        await eventually(lambda: consumer.metrics().total_acked == 20)
    assert handler.runs == {n: 2 if n in (3, 11, 19) else 1 for n in range(20)}
    assert pending_ids(raw) == []


async def test_a_message_in_the_handler_is_settled_once(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, range(5))
    began, go_on = Event(), Event()
    handled: list[int] = []
    events: list[Occurrence] = []

    async def slow(messages: list[StreamMessage]) -> list[str]:
        handled.extend(message.data for message in messages)
        if 4 in handled:
            began.set()
            await wait_for(go_on)
        return all_ids(messages)

    consumer = StreamConsumer(client, STREAM, quick(), slow, on_event=events.append)
    async with running(consumer):
        await wait_for(began)
        destroy_group(raw)
        await eventually(lambda: of_kind(events, EventName.GROUP_LOST))
        go_on.set()
        await publish(client, [5])
        await eventually(lambda: 5 in handled)
        await eventually(lambda: pending_ids(raw) == [])
    assert set(handled) == set(range(6))


@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_the_consumer_goes_on_with_what_is_published_afterwards(
    client: StreamClient, raw: redis.Redis, accident: Callable[[redis.Redis], None]
) -> None:
    await publish(client, range(10))
    handler = Recorder()
    events: list[Occurrence] = []
    consumer = StreamConsumer(client, STREAM, quick(), handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 10)
        accident(raw)
        await publish(client, range(10, 20))
        await eventually(lambda: consumer.metrics().total_acked == 20)
    assert handler.seen == list(range(20))
    assert of_kind(events, EventName.GROUP_LOST)


async def test_a_stream_that_is_deleted_under_a_blocked_read_is_noticed(client: StreamClient, raw: redis.Redis) -> None:
    events: list[Occurrence] = []
    handler = Recorder()
    # Recovery looks in ten times a second; the read itself would wait for a minute.
    config = quick(block_ms=60_000, recovery_interval_ms=100)
    consumer = StreamConsumer(client, STREAM, config, handler, on_event=events.append)
    async with running(consumer):
        await eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        delete_stream(raw)
        await eventually(lambda: of_kind(events, EventName.GROUP_LOST))
        await publish(client, range(3))
        await eventually(lambda: consumer.metrics().total_acked == 3)


async def test_several_consumers_survive_it_together(client: StreamClient, raw: redis.Redis) -> None:
    handler = Recorder()
    consumers = [StreamConsumer(client, STREAM, quick(recovery_interval_ms=500), handler) for _ in range(3)]

    def acked() -> int:
        return sum(consumer.metrics().total_acked for consumer in consumers)

    async with running(*consumers):
        for turn in range(3):
            await publish(client, range(turn * 30, turn * 30 + 30))
            await eventually(lambda: acked() == turn * 30 + 30)  # noqa: B023  # asked within the turn
            await eventually(lambda: pending_ids(raw) == [])
            destroy_group(raw)
            await eventually(lambda: raw.xinfo_groups(STREAM))
    assert sorted(handler.seen) == list(range(90))


async def test_a_group_that_was_destroyed_while_nobody_ran_is_created_where_it_had_come_to(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(20))
    handler = Recorder()
    first = StreamConsumer(client, STREAM, quick(), handler)
    async with running(first):
        await eventually(lambda: first.metrics().total_acked == 20)
    destroy_group(raw)
    await publish(client, range(20, 25))
    second = StreamConsumer(client, STREAM, quick(), handler)
    async with running(second):
        await eventually(lambda: second.metrics().total_acked == 5)
    assert handler.seen == list(range(25))


@pytest.mark.usefixtures("default_server")
async def test_a_stream_that_begins_again_with_smaller_ids_is_read_from_its_beginning(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, range(3))
    handler = Recorder()
    consumer = StreamConsumer(client, STREAM, quick(), handler)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 3)
    delete_stream(raw)
    raw.xadd(STREAM, {"data": "100"}, id="5-1")  # as after a restore from an old backup
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 4)
    assert handler.seen == [0, 1, 2, 100]


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("oldest", ["7-0", "7-10", f"7-{2**53 + 1}", f"7-{2**64 - 1}", f"{2**53 + 1}-0", "10-0"])
async def test_a_group_that_had_much_pending_begins_again_with_the_oldest(
    client: StreamClient, raw: redis.Redis, oldest: str
) -> None:
    raw.xadd(STREAM, {"data": "1"}, id=before(oldest))
    raw.xadd(STREAM, {"data": "2"}, id=oldest)
    raw.set(client.keys(STREAM).position(GROUP), f"({oldest}")
    assert await ConsumerGroup(client, STREAM, GROUP).restore() == before(oldest)
    assert read_as(raw, "someone") == [oldest]


@pytest.mark.usefixtures("default_server")
async def test_restoring_looks_at_what_is_pending_again_however_much_was_waiting(
    client: StreamClient, raw: redis.Redis
) -> None:
    first, second = await publish(client, range(2))
    keys = client.keys(STREAM)
    raw.set(keys.position(GROUP), f"{second} {first} {second} 1-1")
    raw.zadd(keys.retries(GROUP), {f"1-{n}": n for n in range(1_000)} | {first: 10**13})
    raw.hset(keys.attempts(GROUP), mapping={f"1-{n}": n for n in range(1_000)} | {second: 3})
    looked = calls(raw, "xpending")
    await ConsumerGroup(client, STREAM, GROUP).restore()
    assert calls(raw, "xpending") - looked < 10
    assert pending_ids(raw) == [first, second]
    assert raw.zrange(keys.retries(GROUP), 0, -1, withscores=True) == [(first.encode(), 10**13)]
    assert raw.hgetall(keys.attempts(GROUP)) == {second.encode(): b"3"}


@pytest.mark.usefixtures("default_server")
async def test_a_group_that_the_server_refuses_to_create_is_tried_again_after_growing_pauses(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[int] = []

    def pause_s(failures: int, _: object) -> float:
        pauses.append(failures)
        return 0.01

    await publish(client, range(10))
    consumer = StreamConsumer(client, STREAM, quick(), Recorder())
    monkeypatch.setattr(sys.modules[StreamConsumer.__module__], "pause_s", pause_s)
    async with running(consumer):
        await eventually(lambda: consumer.metrics().total_acked == 10)
        raw.config_set("maxmemory", 1)
        destroy_group(raw)
        await eventually(lambda: max(pauses, default=0) >= 5)
        raw.config_set("maxmemory", 0)
        await publish(client, range(10))
        await eventually(lambda: consumer.metrics().total_acked == 20)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) < 5, "an outage is reported once a minute"
