"""What the tests of leases and faults share: a queue with short times, and looks at the truth in Redis."""

from __future__ import annotations

from typing import Any

import redis

from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.events import Event, EventName
from penstock.queue.processing import Processing

QUEUE = "orders"
GROUP = "queue"
DEAD_LETTERS = "orders::dlq"
COMPLETED = "orders::completed"
FAILED = "orders::failed"
LONG_S = 60.0  # a lease that runs out only when the test says so


def quick_gateway(client: StreamClient, **settings: Any) -> RedisGateway:
    """Returns a gateway with a long lease, which `age` ends, and short waits."""
    times = {"retry_budget_seconds": 60, "retry_max_delay_seconds": 0.1, "message_wait_interval_seconds": 0.3}
    lease = {"message_visibility_timeout_seconds": LONG_S, "max_delivery_count": 10, "dead_letter_queue": DEAD_LETTERS}
    return RedisGateway(redis_client=client, **{**times, **lease, **settings})


def at_most_once(client: StreamClient, **settings: Any) -> RedisGateway:
    """Returns a gateway that hands every message out once."""
    off = {"message_visibility_timeout_seconds": None, "max_delivery_count": None}
    return quick_gateway(client, **{**off, **settings})


def always_ahead(client: StreamClient, **settings: Any) -> RedisGateway:
    """Returns a gateway that takes the next message with the end of each one, however slow its caller is."""
    gateway = quick_gateway(client, **settings)
    gateway._consumer_of(QUEUE)._take_ahead_after = 0
    return gateway


def queue_of(gateway: RedisGateway, **options: Any) -> RedisMessageQueue:
    """Returns a queue whose retries come soon."""
    return RedisMessageQueue(QUEUE, gateway=gateway, **{"retry_delay_seconds": 0.01, **options})


class Events(list[Event]):
    """A sink that remembers."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, name: EventName) -> list[Event]:
        """Returns the events of one name."""
        return [event for event in self if event.name is name]


class InFlight:
    """A message that a consumer has in hand, to be ended as the test wishes."""

    def __init__(self, processing: Processing, message: Any) -> None:
        self.processing, self.message = processing, message

    @property
    def token(self) -> str:
        """The lease token."""
        assert self.processing.lease_token is not None
        return self.processing.lease_token

    @property
    def number(self) -> int:
        """The part of the token that rises."""
        return int(self.token.partition(":")[0])

    async def end(self, error: BaseException | None = None) -> None:
        """Leaves the body, with an exception if one is given."""
        await self.processing.__aexit__(type(error) if error else None, error, None)


async def take(queue: RedisMessageQueue) -> InFlight | None:
    """Takes the next message; None = there was none."""
    processing = queue.process_message()
    message = await processing.__aenter__()
    return None if message is None else InFlight(processing, message)


async def taken(queue: RedisMessageQueue) -> InFlight:
    """Takes the next message, which must be there."""
    held = await take(queue)
    assert held is not None
    return held


# --- what the server says -------------------------------------------------------------------------


def pending(raw: redis.Redis) -> dict[str, tuple[str, int]]:
    """Returns holder and delivery count of every pending entry."""
    rows = raw.xpending_range(QUEUE, GROUP, "-", "+", 1_000)
    return {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}


def age(raw: redis.Redis, idle_s: float = 2 * LONG_S) -> None:
    """Has all leases run out, as if so much time had passed."""
    for entry_id, (holder, _) in pending(raw).items():
        raw.xclaim(QUEUE, GROUP, holder, 0, [entry_id], idle=int(idle_s * 1000), justid=True)


def look_again(gateway: RedisGateway) -> None:
    """Has the gateway look for due and abandoned messages at its next call, all of them, not only every few seconds."""
    for consumer in gateway._consumers.values():
        consumer._next_due_s = consumer._next_recovery_s = 0.0
        consumer._cursor = "-"


def records(raw: redis.Redis, key: str) -> list[dict[str, bytes]]:
    """Returns the records of a log or of the dead letters, oldest first."""
    return [{name.decode(): value for name, value in fields.items()} for _, fields in raw.xrange(key)]


def payloads(raw: redis.Redis, key: str) -> list[str]:
    """Returns the messages in a stream, oldest first."""
    return [record["data"].decode() for record in records(raw, key)]
