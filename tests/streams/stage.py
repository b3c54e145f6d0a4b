"""The stage on which the tests of streams play: names, times, a handler with a memory, a consumer that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import redis

from penstock import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.events import Event, EventName
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.helpers.aio import Task, eventually, join, start
from tests.helpers.commandstats import calls

STREAM = "orders"
GROUP = "workers"
DEAD_LETTERS = "orders_dlq"


def quick(**settings: Any) -> ConsumerConfig:
    """Returns a configuration that waits briefly, with leases that run out only when a test says so."""
    times = {"block_ms": 200, "min_idle_claim_ms": LEASE_MS, "retry_initial_delay_ms": 10, "retry_max_delay_ms": 100}
    return ConsumerConfig(**{"group": GROUP, "batch_size": 10, **times, **settings})


async def publish(client: StreamClient, payloads: Iterable[Any]) -> list[str]:
    """Adds messages and returns their ids."""
    return await StreamProducer(client, STREAM).push_many(payloads)


class Recorder:
    """A handler that remembers what it was given; `work` may fail, or say which ids are done."""

    def __init__(self, work: Callable[[list[StreamMessage]], Any] | None = None) -> None:
        self.batches: list[list[Any]] = []
        self.counts: list[tuple[int, int]] = []
        self._work = work

    async def __call__(self, messages: list[StreamMessage]) -> Any:
        self.batches.append([message.data for message in messages])
        self.counts += [(message.delivery_count, message.attempts) for message in messages]
        return self._work(messages) if self._work is not None else all_ids(messages)

    @property
    def seen(self) -> list[Any]:
        """The payloads in the order in which they came, once for each run."""
        return [data for batch in self.batches for data in batch]

    @property
    def runs(self) -> Counter[Any]:
        """How often each payload came."""
        return Counter(self.seen)


def all_ids(messages: list[StreamMessage]) -> list[str]:
    """Returns the ids of the messages: what a handler says that has done everything."""
    return [message.id for message in messages]


def fail(messages: list[StreamMessage]) -> Any:
    """Fails, as a handler may."""
    raise ValueError("this cannot be handled")


@asynccontextmanager
async def running(*consumers: StreamConsumer) -> AsyncIterator[list[Task[Any]]]:
    """Runs consumers beside the test; stops them at the end and raises what they raised."""
    tasks = [start(consumer.run) for consumer in consumers]
    try:
        yield tasks
    finally:
        for consumer, task in zip(consumers, tasks, strict=True):
            if not task.done():
                consumer.stop()
        for task in tasks:
            await join(task)


def of_kind(events: list[Event], name: EventName) -> list[Event]:
    """Returns the events of one name."""
    return [event for event in events if event.name is name]


# --- what the server says -------------------------------------------------------------------------


def pending_ids(raw: redis.Redis, group: str = GROUP) -> list[str]:
    """Returns the ids that are pending in the group, oldest first."""
    return [row["message_id"].decode() for row in raw.xpending_range(STREAM, group, "-", "+", 100_000)]


def read_as(raw: redis.Redis, consumer: str, count: int = 1_000) -> list[str]:
    """Reads new entries as another consumer of the group, which then holds them; returns their ids."""
    raw.xgroup_create(STREAM, GROUP, "0", mkstream=True) if not raw.exists(STREAM) else None
    reply = raw.xreadgroup(GROUP, consumer, {STREAM: ">"}, count=count)
    return [entry_id.decode() for _, rows in reply for entry_id, _ in rows]


def expire(raw: redis.Redis) -> None:
    """Lets the leases of all messages that are pending in the group run out."""
    Ageing(raw, STREAM, GROUP).expire()


async def recoveries(raw: redis.Redis, count: int = 5) -> None:
    """Waits until consumers have looked for expired leases so often; set their `recovery_interval_ms`."""
    wanted = calls(raw, "xpending") + 2 * count  # every look asks for at least one page
    await eventually(lambda: calls(raw, "xpending") >= wanted)


def dead_letters(raw: redis.Redis, key: str = DEAD_LETTERS) -> list[dict[str, bytes]]:
    """Returns the fields of the dead letters as they are stored."""
    return [{name.decode(): value for name, value in fields.items()} for _, fields in raw.xrange(key)]
