"""The stage on which the tests of queues play: a queue with short times, and what one does with it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import redis

from penstock import RedisGateway, RedisMessageQueue
from penstock.errors import PenstockError
from penstock.events import Event, EventName

NAME = "orders"
DEAD_LETTERS = "orders::dlq"
COMPLETED = "orders::completed"
FAILED = "orders::failed"
_OF_GATEWAYS = (
    "retry_budget_seconds",
    "message_deduplication_log_ttl_seconds",
    "message_wait_interval_seconds",
    "message_visibility_timeout_seconds",
    "max_delivery_count",
    "dead_letter_queue",
    "interrupt",
    "max_pending_length",
    "pending_overload_policy",
    "pending_block_timeout_seconds",
    "max_payload_bytes",
)


def make_queue(client: Any, name: str = NAME, **options: Any) -> RedisMessageQueue:
    """Returns a queue that does not wait for messages and tries again at once; options are the queue's or its gateway's."""
    ours = {option: options.pop(option) for option in _OF_GATEWAYS if option in options}
    lease_s = ours.get("message_visibility_timeout_seconds", 30)
    limits = {"max_delivery_count": 3, "dead_letter_queue": f"{name}::dlq"} if lease_s is not None else {}
    gateway = RedisGateway(
        redis_client=client,
        **{
            "message_wait_interval_seconds": 0,
            "message_visibility_timeout_seconds": lease_s,
            "on_event": options.get("on_event"),
            **limits,
            **ours,
        },
    )
    return RedisMessageQueue(name, gateway=gateway, **{"retry_delay_seconds": 0.001, **options})


async def take(queue: RedisMessageQueue) -> Any:
    """Processes the next message and returns it; None = there was none."""
    async with queue.process_message() as message:
        return message


async def take_all(queue: RedisMessageQueue) -> list[Any]:
    """Processes what is there and returns it."""
    found = []
    while (message := await take(queue)) is not None:
        found.append(message)
    return found


async def fail(queue: RedisMessageQueue, error: BaseException | None = None) -> tuple[Any, int, int]:
    """Has the handler of the next message fail; returns the message, its deliveries and its attempts.

    KeyboardInterrupt and GeneratorExit strike it from outside, as Ctrl-C and the closing of a generator do.
    """
    error = error or ValueError("no such customer")
    processing = queue.process_message()
    message = None
    try:
        async with processing as message:
            if message is not None and isinstance(error, KeyboardInterrupt | GeneratorExit):
                strike(error)
            if message is not None:
                raise error
    except BaseException as raised:
        if raised is not error:  # the caller sees what the handler raised
            raise
    return message, processing.delivery_count, processing.attempts


def strike(error: BaseException) -> None:
    """Has the error come up where no code raises it."""

    def bystander() -> Generator[None, None, None]:
        yield

    struck = bystander()
    next(struck)
    struck.throw(error)


async def fail_until_dead(queue: RedisMessageQueue, raw: redis.Redis, error: BaseException | None = None) -> int:
    """Has the handlers of the only message fail until it is a dead letter; returns how many there were."""
    runs, dead = 0, raw.xlen(DEAD_LETTERS)
    while raw.xlen(DEAD_LETTERS) == dead:
        message, _, _ = await fail(queue, error)
        runs += message is not None
    return runs


def of_kind(events: list[Event], name: EventName) -> list[Event]:
    """Returns the events of one name."""
    return [event for event in events if event.name is name]


# --- what the server says -------------------------------------------------------------------------


def payloads(raw: redis.Redis, key: str = NAME) -> list[bytes]:
    """Returns the payloads of a stream, oldest first."""
    return [fields[b"data"] for _, fields in raw.xrange(key)]


def markers(raw: redis.Redis) -> list[bytes]:
    """Returns the deduplication keys that are taken."""
    return sorted(raw.keys("*:dedup:*"))


def in_flight(raw: redis.Redis, name: str = NAME) -> list[str]:
    """Returns the ids of the messages that were handed out and are not settled."""
    try:
        return [row["message_id"].decode() for row in raw.xpending_range(name, "queue", "-", "+", 10_000)]
    except redis.ResponseError:
        return []  # nobody has asked for a message yet


def says(error: PenstockError, *words: str) -> None:
    """Checks that an error names all of these."""
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{error!r} does not say {missing}"
