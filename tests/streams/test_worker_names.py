"""A worker name given by the user belongs to one process: the older of two is fenced off and says so."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import StreamClient, StreamConsumer, StreamMessage
from penstock.delivery.group_commands import GroupCommands
from penstock.errors import ConsumerNameTaken
from tests.helpers.aio import Event, eventually, join, start, wait_for
from tests.streams.stage import (
    DEAD_LETTERS,
    GROUP,
    STREAM,
    Recorder,
    all_ids,
    pending_ids,
    publish,
    quick,
    recoveries,
    running,
)

NAMED = {"worker_name": "worker-1", "min_idle_claim_ms": 60_000, "heartbeat_interval_ms": 20}


class Gate:
    """A handler that begins and then waits until it is let go."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.go_on = Event()

    async def __call__(self, messages: list[StreamMessage]) -> list[str]:
        self.seen += [message.data for message in messages]
        await wait_for(self.go_on)
        return all_ids(messages)


async def test_the_older_of_two_consumers_with_one_name_is_fenced_off(client: StreamClient) -> None:
    older = StreamConsumer(client, STREAM, quick(**NAMED), Recorder())
    newer = StreamConsumer(client, STREAM, quick(**NAMED), Recorder())
    old_run = start(older.run)
    await publish(client, [1])
    await eventually(lambda: older.metrics().total_acked == 1)
    async with running(newer):
        with pytest.raises(ConsumerNameTaken, match="worker-1"):
            await join(old_run)
        await publish(client, [2])
        await eventually(lambda: newer.metrics().total_acked == 1)


async def test_what_the_older_one_says_about_its_messages_is_refused(client: StreamClient, raw: redis.Redis) -> None:
    await publish(client, [1])
    old, new = Gate(), Gate()
    # No heartbeat comes to its aid: the ack itself is refused.
    config = quick(worker_name="worker-1", min_idle_claim_ms=60_000)
    older = StreamConsumer(client, STREAM, config, old)
    newer = StreamConsumer(client, STREAM, config, new)
    old_run = start(older.run)
    await eventually(lambda: old.seen == [1])
    async with running(newer):
        await eventually(lambda: new.seen == [1])  # pending with its name and held by nobody it knows
        old.go_on.set()
        with pytest.raises(ConsumerNameTaken):
            await join(old_run)
        assert len(pending_ids(raw)) == 1
        new.go_on.set()
        await eventually(lambda: newer.metrics().total_acked == 1)
    assert older.metrics().total_acked == 0
    assert new.seen == [1]


@pytest.mark.parametrize("max_deliveries", [1, 3])
async def test_the_failure_of_the_older_one_neither_delays_nor_buries_what_the_newer_one_is_working_on(
    client: StreamClient, raw: redis.Redis, max_deliveries: int
) -> None:
    await publish(client, [1])
    old, new = Gate(), Gate()

    async def fail_late(messages: list[StreamMessage]) -> list[str]:
        await old(messages)
        raise ValueError("too late")

    config = quick(worker_name="worker-1", min_idle_claim_ms=60_000, max_deliveries=max_deliveries)
    older = StreamConsumer(client, STREAM, config, fail_late)
    newer = StreamConsumer(client, STREAM, quick(worker_name="worker-1", min_idle_claim_ms=60_000), new)
    old_run = start(older.run)
    await eventually(lambda: old.seen == [1])
    async with running(newer):
        await eventually(lambda: new.seen == [1])
        old.go_on.set()
        with pytest.raises(ConsumerNameTaken):
            await join(old_run)
        assert not raw.exists(DEAD_LETTERS, f"{{{STREAM}}}:retries:{GROUP}")
        new.go_on.set()
        await eventually(lambda: newer.metrics().total_acked == 1)
    assert new.seen == [1]


async def test_the_older_one_does_not_hand_back_what_the_newer_one_is_working_on(
    client: StreamClient, raw: redis.Redis
) -> None:
    await publish(client, [1])
    old, new = Gate(), Gate()
    config = quick(**NAMED, shutdown_grace_ms=0)
    older, newer = StreamConsumer(client, STREAM, config, old), StreamConsumer(client, STREAM, config, new)
    peer_saw = Recorder()
    peer = StreamConsumer(client, STREAM, quick(recovery_interval_ms=20), peer_saw)
    old_run = start(older.run)
    await eventually(lambda: old.seen == [1])
    async with running(newer):
        await eventually(lambda: new.seen == [1])
        with pytest.raises(ConsumerNameTaken):
            await join(old_run)
        async with running(peer):
            await recoveries(raw)
        assert peer_saw.seen == []
        new.go_on.set()
        await eventually(lambda: newer.metrics().total_acked == 1)
    old.go_on.set()
    assert pending_ids(raw) == []
    assert new.seen == [1]


@pytest.mark.usefixtures("default_server")
async def test_a_fenced_consumer_stays_fenced(client: StreamClient) -> None:
    older = StreamConsumer(client, STREAM, quick(**NAMED), Recorder())
    old_run = start(older.run)
    await eventually(lambda: older._is_open)
    async with running(StreamConsumer(client, STREAM, quick(**NAMED), Recorder())):
        with pytest.raises(ConsumerNameTaken):
            await join(old_run)
        with pytest.raises(ConsumerNameTaken):
            await older.run()
        with pytest.raises(ConsumerNameTaken):
            await older.run_once()


@pytest.mark.usefixtures("default_server")
async def test_a_name_is_free_again_when_its_consumer_has_stopped(client: StreamClient, raw: redis.Redis) -> None:
    for n in range(3):
        consumer = StreamConsumer(client, STREAM, quick(**NAMED), Recorder())
        async with running(consumer):
            await publish(client, [n])
            await eventually(lambda: consumer.metrics().total_acked == 1)  # noqa: B023  # asked within the turn
    assert not raw.keys("*:worker:*")


@pytest.mark.usefixtures("default_server")
async def test_one_name_in_two_groups_is_two_consumers(client: StreamClient) -> None:
    one = StreamConsumer(client, STREAM, quick(**NAMED), Recorder())
    other = StreamConsumer(client, STREAM, quick(**NAMED, group="auditors"), Recorder())
    async with running(one, other):
        await publish(client, range(20))
        await eventually(lambda: one.metrics().total_acked == other.metrics().total_acked == 20)


@pytest.mark.usefixtures("default_server")
async def test_without_a_name_every_consumer_gets_one_of_its_own(client: StreamClient) -> None:
    names = {StreamConsumer(client, STREAM, quick(), Recorder()).worker_name for _ in range(50)}
    assert len(names) == 50


async def test_a_process_that_leaves_does_not_take_the_name_from_a_newer_one(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = [GroupCommands(client, client.keys(STREAM), GROUP, "worker-1", DEAD_LETTERS) for _ in range(2)]
    await older.take_name("older", 60_000)
    await older.leave_name()  # the script is known from here on
    await older.take_name("older", 60_000)
    really = client.call

    async def call(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        answer = await really(*args, **options)
        await newer.take_name("newer", 60_000)  # whatever the older one has sent by now
        return answer

    monkeypatch.setattr(client, "call", call)
    await older.leave_name()
    assert raw.get(client.keys(STREAM).worker(GROUP, "worker-1")) == b"newer"
    await newer.leave_name()
    assert raw.get(client.keys(STREAM).worker(GROUP, "worker-1")) is None
