"""`run(handler)`: one handler for each owned stream, from the last committed position, fenced against owners of the past."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import JsonSerializer, OwnedStream, StreamClient
from penstock.errors import ConfigurationError, OwnershipLost
from penstock.events import Event as Occurrence
from penstock.events import EventName
from penstock.testing import FaultProxy
from tests.balancer.stage import GROUP, LBS, SEP, add_raw, locks, pending, quick, running
from tests.helpers.aio import Event, eventually, pause, throughout, wait_for

GO = "redis-consumer-go-1"
DEAD_LETTERS = "{svc-input}_dlq"


class Reading:
    """A handler that remembers what it read, commits each entry, and is done when it reads `last`."""

    def __init__(self, *, commits: bool = True) -> None:
        self.seen: list[tuple[str, str]] = []
        self.begun: list[OwnedStream] = []
        self.ended: list[str] = []
        self._commits = commits

    async def __call__(self, stream: OwnedStream) -> None:
        self.begun.append(stream)
        try:
            async for message in stream:
                assert message.fields is not None
                value = message.fields["n"].decode()
                self.seen.append((stream.name, value))
                if self._commits:
                    await stream.commit(message)
                if value == "last":
                    return
        finally:
            self.ended.append(stream.name)

    def of(self, name: str) -> list[str]:
        return [value for stream, value in self.seen if stream == name]


def fill(raw: redis.Redis, name: str, *values: object) -> list[str]:
    return [raw.xadd(name, {"n": str(value)}).decode() for value in values]


def reasons(raw: redis.Redis) -> list[tuple[str, str]]:
    """Returns why, and after how many deliveries, streams were given up."""
    return [(row[b"dlq_reason"].decode(), row[b"dlq_deliveries"].decode()) for _, row in raw.xrange(DEAD_LETTERS)]


async def test_a_stream_is_read_in_order_until_its_handler_returns(client: StreamClient, raw: redis.Redis) -> None:
    reading = Reading()
    fill(raw, "session-1", *range(250))
    async with running((quick(client, "a"), reading)):
        add_raw(raw, "session-1", {"user": 7})
        await eventually(lambda: len(reading.seen) == 250)
        assert reading.begun[0].info == {"user": 7}
        fill(raw, "session-1", "more")
        await eventually(lambda: len(reading.seen) == 251)
        fill(raw, "session-1", "last")
        await eventually(lambda: raw.xlen(LBS) == 0)
    assert reading.of("session-1") == [*map(str, range(250)), "more", "last"]
    assert locks(raw) == {}


@pytest.mark.usefixtures("default_server")
async def test_the_position_of_a_finished_stream_expires_though_that_took_several_tries(
    fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    fill(raw, "session-1", "last")
    lost = [
        fault_proxy.drop_request("EVALSHA", containing=b"604800000") for _ in range(4)
    ]  # more than one command tries
    async with StreamClient.from_url(fault_proxy.url) as client, running((quick(client, "a"), Reading())):
        add_raw(raw, "session-1")
        await eventually(lambda: raw.pttl("{session-1}:balancer:svc") > 0)
    assert all(fault.has_happened for fault in lost)


@pytest.mark.every_server
async def test_the_next_owner_goes_on_where_the_last_one_had_committed(client: StreamClient, raw: redis.Redis) -> None:
    first, second = Reading(), Reading()
    fill(raw, "session-1", 1, 2, 3)
    async with running((quick(client, "a"), first)):
        add_raw(raw, "session-1")
        await eventually(lambda: len(first.seen) == 3)
    assert raw.xlen(LBS) == 1, "stopping finishes nothing"
    fill(raw, "session-1", 4, "last")
    async with running((quick(client, "b"), second)):
        await eventually(lambda: raw.xlen(LBS) == 0)
    assert second.of("session-1") == ["4", "last"]
    assert second.begun[0].token > first.begun[0].token


async def test_what_was_not_committed_is_read_again(client: StreamClient, raw: redis.Redis) -> None:
    first, second = Reading(commits=False), Reading()
    fill(raw, "session-1", 1, 2)
    async with running((quick(client, "a"), first)):
        add_raw(raw, "session-1")
        await eventually(lambda: len(first.seen) == 2)
    fill(raw, "session-1", "last")
    async with running((quick(client, "b"), second)):
        await eventually(lambda: raw.xlen(LBS) == 0)
    assert second.of("session-1") == ["1", "2", "last"]


async def test_a_handler_whose_stream_was_taken_over_is_told_and_its_commit_refused(
    client: StreamClient, raw: redis.Redis
) -> None:
    reading = Reading()
    fill(raw, "session-1", 1)
    async with running((quick(client, "a"), reading)):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: reading.seen)
        raw.hset("{session-1}:balancer:svc", "token", 10_000)  # a newer owner has opened it
        raw.set(f"session-1{SEP}{entry_id}", GO, px=60_000)
        with pytest.raises(OwnershipLost, match="was not recorded"):
            await reading.begun[0].commit("9-9")
        assert raw.hget("{session-1}:balancer:svc", "position") != b"9-9"
        await eventually(lambda: reading.ended == ["session-1"])
        # Several heartbeats, which leave no trace when they own nothing.
        await throughout(0.3, lambda: locks(raw) == {f"session-1{SEP}{entry_id}": GO})
    assert entry_id in pending(raw), "the new owner's entry is untouched"


async def test_a_handler_that_waits_is_cancelled_when_its_stream_is_lost(
    client: StreamClient, raw: redis.Redis
) -> None:
    reading = Reading()
    async with running((quick(client, "a"), reading)):
        entry_id = add_raw(raw, "session-1")
        await eventually(lambda: reading.begun)
        raw.eval(
            "redis.call('SET', KEYS[2], ARGV[2], 'PX', 60000) return redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3])",
            2, LBS, f"session-1{SEP}{entry_id}", GROUP, GO, entry_id,
        )  # fmt: skip
        await eventually(lambda: reading.ended == ["session-1"])
        assert reading.begun[0].is_lost


async def test_a_failing_handler_hands_its_stream_over(client: StreamClient, raw: redis.Redis) -> None:
    reading, failed = Reading(), Event()

    async def fail(stream: OwnedStream) -> None:
        failed.set()
        raise ValueError("this cannot be handled")

    fill(raw, "session-1", "last")
    async with running((quick(client, "a", capacity=1), fail)):
        add_raw(raw, "session-1")
        await wait_for(failed)
        async with running((quick(client, "b"), reading)):
            await eventually(lambda: raw.xlen(LBS) == 0)
    assert reading.of("session-1") == ["last"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_stream_whose_handler_exits_ends_the_run_and_is_given_up(
    client: StreamClient, raw: redis.Redis, kind: type[BaseException]
) -> None:
    begun: list[str] = []

    async def leave(stream: OwnedStream) -> None:
        begun.append(stream.name)
        raise kind(66)

    add_raw(raw, "session-1")
    for _ in range(2):
        with pytest.raises(kind, match="66"):
            await quick(client, "a", max_deliveries=2).run(leave, handle_signals=False)
    async with running((quick(client, "b", max_deliveries=2), leave)):
        await eventually(lambda: raw.xlen(DEAD_LETTERS))
    assert begun == ["session-1", "session-1"]
    assert reasons(raw) == [("max_deliveries", "2")]


class Burst(BaseException):
    """No Exception, and none of those that end a process."""


async def test_a_stream_whose_handler_raises_no_exception_is_given_up(client: StreamClient, raw: redis.Redis) -> None:
    begun: list[str] = []

    async def burst(stream: OwnedStream) -> None:
        begun.append(stream.name)
        raise Burst

    async with running((quick(client, "a", max_deliveries=2), burst)):
        add_raw(raw, "session-1")
        await eventually(lambda: raw.xlen(DEAD_LETTERS))
    assert begun == ["session-1", "session-1"]
    assert reasons(raw) == [("max_deliveries", "2")]


async def test_handlers_run_side_by_side_and_one_that_fails_stops_no_other(
    client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading()

    async def handle(stream: OwnedStream) -> None:
        if stream.name == "bad":
            raise ValueError("this cannot be handled")
        await reading(stream)

    async with running((quick(client, "a"), handle)):
        _, bad, _ = [add_raw(raw, name) for name in ("one", "bad", "two")]
        await eventually(lambda: len(reading.begun) == 2)
        fill(raw, "two", "last")
        await eventually(lambda: reading.ended == ["two"])
        fill(raw, "one", "last")
        await eventually(lambda: sorted(reading.ended) == ["one", "two"])
    record = next(record for record in caplog.records if "failed in attempt" in record.getMessage())
    assert f"data stream 'bad', entry {bad} of {LBS}/{GROUP}, failed in attempt 1;" in record.getMessage()
    assert record.exc_info is not None


async def test_finish_ends_a_stream_that_is_being_handed_over(client: StreamClient, raw: redis.Redis) -> None:
    began = Event()

    async def handle(stream: OwnedStream) -> None:
        began.set()
        async for _ in stream:
            pass
        stream.finish()

    async with running((quick(client, "a"), handle)):
        add_raw(raw, "session-1")
        await wait_for(began)
    assert raw.xlen(LBS) == 0


async def test_messages_are_decoded_by_the_serializer_and_bad_ones_set_apart(
    client: StreamClient, raw: redis.Redis
) -> None:
    seen, events = list[Any](), list[Occurrence]()

    async def handle(stream: OwnedStream) -> None:
        async for message in stream:
            seen.append(message.data)
            await stream.commit()

    raw.xadd("session-1", {"data": '{"n": 1}'})
    raw.xadd("session-1", {"data": "no json"})
    raw.xadd("session-1", {"data": '{"n": 2}'})
    async with running((quick(client, "a", on_event=events.append), handle), serializer=JsonSerializer()):
        add_raw(raw, "session-1")
        await eventually(lambda: len(seen) == 2)
    assert seen == [{"n": 1}, {"n": 2}]
    ((_, record),) = raw.xrange("session-1_dlq")
    assert record[b"dlq_reason"] == b"decode_error"
    (event,) = [event for event in events if event.name is EventName.DEAD_LETTERED]
    assert (event.stream, event.fields["id"]) == ("session-1", record[b"dlq_id"].decode())


async def test_an_entry_that_cannot_be_decoded_is_set_apart_when_the_owner_comes_to_it_and_not_by_each_owner(
    client: StreamClient, raw: redis.Redis
) -> None:
    seen: list[Any] = []

    async def one(stream: OwnedStream) -> None:
        async for message in stream:
            seen.append(message.data)
            await stream.commit()
            stream.drain()

    async def all_of_them(stream: OwnedStream) -> None:
        async for message in stream:
            seen.append(message.data)
            await stream.commit()

    def dead() -> list[bytes]:
        return [fields[b"data"] for _, fields in raw.xrange("session-1_dlq")]

    for data in ("no json", '{"n": 1}', "nor this", '{"n": 2}', "nor that"):
        raw.xadd("session-1", {"data": data})
    add_raw(raw, "session-1")
    async with running((quick(client, "a"), one), serializer=JsonSerializer()):
        await eventually(lambda: len(seen) == 1 and not locks(raw))
        assert dead() == [b"no json"]
    for number in (2, 3):
        async with running((quick(client, f"b{number}"), all_of_them), serializer=JsonSerializer()):
            await eventually(lambda number=number: len(seen) == number)  # type: ignore[misc]
            await eventually(lambda: len(dead()) == 3)
        raw.xadd("session-1", {"data": '{"n": 3}'})
    assert seen == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert dead() == [b"no json", b"nor this", b"nor that"]


async def test_streams_move_to_a_consumer_that_joins(client: StreamClient, raw: redis.Redis) -> None:
    first, second = Reading(), Reading()
    a, b = quick(client, "a"), quick(client, "b")
    async with running((a, first)):
        for number in range(8):
            add_raw(raw, f"session-{number}")
        await eventually(lambda: len(a.owned) == 8)
        async with running((b, second)):
            await eventually(lambda: (len(a.owned), len(b.owned)) == (4, 4))
            # Several rounds of balancing: nothing shows that one decides to leave all as it is.
            await throughout(0.5, lambda: (len(a.owned), len(b.owned)) == (4, 4))
        await eventually(lambda: len(a.owned) == 8)


async def test_a_stream_is_let_go_between_two_messages_when_it_moves(client: StreamClient, raw: redis.Redis) -> None:
    open_hands: set[tuple[str, str]] = set()
    overlaps: list[str] = []

    def handler(owner: str) -> Any:
        async def handle(stream: OwnedStream) -> None:
            async for message in stream:
                if any(name == stream.name for _, name in open_hands):
                    overlaps.append(stream.name)
                open_hands.add((owner, stream.name))
                await pause(0.001)
                open_hands.discard((owner, stream.name))
                await stream.commit(message)

        return handle

    for number in range(4):
        fill(raw, f"session-{number}", *range(300))
        add_raw(raw, f"session-{number}")
    a, b = quick(client, "a"), quick(client, "b")
    async with running((a, handler("a"))):
        await eventually(lambda: len(a.owned) == 4)
        async with running((b, handler("b"))):
            await eventually(lambda: len(b.owned) == 2)
            await eventually(lambda: all(_position(raw, f"session-{n}") for n in range(4)))
    assert overlaps == []


def _position(raw: redis.Redis, name: str) -> bool:
    last = raw.xrevrange(name, count=1)[0][0]
    return raw.hget(f"{{{name}}}:balancer:svc", "position") == last


async def test_bad_use_is_told(client: StreamClient) -> None:
    balancer = quick(client, "a")
    with pytest.raises(ConfigurationError, match="handler"):
        await balancer.run(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="shutdown_grace_ms"):
        await balancer.run(Reading(), shutdown_grace_ms=-1)
