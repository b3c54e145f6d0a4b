"""Every wrong argument is refused when the queue is made, by an error that names the argument and the fix.

A kind that cannot be is a TypeError, a value that cannot be a ValueError, as in redis-message-queue; all of them are
ConfigurationErrors.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from penstock import EventDrivenInterruptHandler, RedisGateway, RedisMessageQueue, StreamClient
from penstock.errors import ConfigurationError, ConfigurationTypeError

NAME = "orders"
NO_NUMBERS = ["5", b"5", [5], True, {}]


@pytest.fixture
async def nowhere() -> AsyncIterator[StreamClient]:
    """A client of a server that does not run: an argument is wrong before anything is sent."""
    async with StreamClient.from_url("redis://127.0.0.1:1") as client:
        yield client


def refused(client: Any, words: str, is_type: bool, **options: Any) -> None:
    made = {} if "gateway" in options else {"client": client}
    with pytest.raises(TypeError if is_type else ValueError, match=words) as caught:
        RedisMessageQueue(NAME, **{**made, **options})
    assert isinstance(caught.value, ConfigurationTypeError) is is_type
    assert isinstance(caught.value, ConfigurationError)


def gateway_refused(client: Any, words: str, is_type: bool, **options: Any) -> None:
    with pytest.raises(TypeError if is_type else ValueError, match=words) as caught:
        RedisGateway(**{"redis_client": client, **options})
    assert isinstance(caught.value, ConfigurationTypeError) is is_type
    assert isinstance(caught.value, ConfigurationError)


# --- client and gateway -----------------------------------------------------------------------------


async def test_exactly_one_of_client_and_gateway(nowhere: StreamClient) -> None:
    words = "exactly one of client .* and gateway"
    with pytest.raises(ValueError, match=words):
        RedisMessageQueue(NAME)
    with pytest.raises(ValueError, match=words):
        RedisMessageQueue(NAME, client=nowhere, gateway=RedisGateway(redis_client=nowhere))


async def test_a_gateway_must_be_one(nowhere: StreamClient) -> None:
    for wrong in (nowhere, "redis://", object()):
        refused(
            nowhere,
            r"subclass of AbstractRedisGateway, not \w+; pass a redis-py client as client=",
            True,
            gateway=wrong,
        )


async def test_what_belongs_to_the_gateway_is_passed_to_it(nowhere: StreamClient) -> None:
    gateway = RedisGateway(redis_client=nowhere)
    for option, value, own in (
        ("visibility_timeout_seconds", 30, "message_visibility_timeout_seconds"),
        ("visibility_timeout_seconds", None, "message_visibility_timeout_seconds"),
        ("max_delivery_count", 3, "max_delivery_count"),
        ("max_pending_length", 3, "max_pending_length"),
        ("pending_overload_policy", "block", "pending_overload_policy"),
        ("interrupt", EventDrivenInterruptHandler(Flag()), "interrupt"),
    ):
        words = f"{option} is an option of the gateway: pass {own} to the gateway"
        refused(nowhere, words, False, gateway=gateway, **{option: value})


class Flag:
    def is_set(self) -> bool:
        return False


async def test_a_gateway_with_dead_letters_serves_one_queue(nowhere: StreamClient) -> None:
    gateway = RedisGateway(
        redis_client=nowhere, message_visibility_timeout_seconds=30, max_delivery_count=3, dead_letter_queue="dead"
    )
    RedisMessageQueue(NAME, gateway=gateway)
    RedisMessageQueue(NAME, gateway=gateway)
    with pytest.raises(ValueError, match="dead letters of queue 'orders': create another gateway for queue 'other'"):
        RedisMessageQueue("other", gateway=gateway)


# --- flags and deduplication ------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["deduplication", "enable_completed_queue", "enable_failed_queue"])
@pytest.mark.parametrize("value", [1, 0, "yes", None, 1.0])
async def test_a_flag_is_true_or_false(nowhere: StreamClient, option: str, value: Any) -> None:
    refused(nowhere, f"{option}=.* must be True or False", True, **{option: value})


async def test_a_key_function_needs_deduplication(nowhere: StreamClient) -> None:
    words = "get_deduplication_key has no effect with deduplication=False: remove one of them"
    refused(nowhere, words, False, deduplication=False, get_deduplication_key=str)
    RedisMessageQueue(NAME, client=nowhere, deduplication=False, get_deduplication_key=None)


@pytest.mark.parametrize("value", ["id", 42, {"a": 1}, True])
async def test_a_key_function_must_be_one(nowhere: StreamClient, value: Any) -> None:
    refused(nowhere, "must be a function that takes a message, or None, not", True, get_deduplication_key=value)


# --- logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["completed", "failed"])
async def test_the_length_of_a_log(nowhere: StreamClient, kind: str) -> None:
    option, flag = f"max_{kind}_length", {f"enable_{kind}_queue": True}
    for value in [*NO_NUMBERS, 2.5]:
        refused(nowhere, f"{option}=.* must be a whole number, not", True, **{option: value}, **flag)
    for number in (0, -1):
        refused(nowhere, f"{option}={number} must be positive", False, **{option: number}, **flag)
    for unused in (5, None):
        refused(nowhere, f"{option} needs enable_{kind}_queue=True", False, **{option: unused})
    for fine in (1, 10**9, None):
        RedisMessageQueue(NAME, client=nowhere, **{option: fine}, **flag)
    RedisMessageQueue(NAME, client=nowhere, **{option: 1_000})


# --- leases, deliveries, heartbeats -----------------------------------------------------------------


async def test_the_visibility_timeout(nowhere: StreamClient) -> None:
    option = "visibility_timeout_seconds"
    for value in NO_NUMBERS:
        refused(nowhere, f"{option}=.* must be a number of seconds, not", True, **{option: value})
    for number in (0, -1, math.inf, math.nan):
        refused(nowhere, f"{option}=.* must be a positive, finite number", False, **{option: number})
    for fine in (1, 300, 0.5):  # redis-message-queue takes whole seconds only
        RedisMessageQueue(NAME, client=nowhere, **{option: fine})


async def test_the_limit_of_deliveries(nowhere: StreamClient) -> None:
    for value in [*NO_NUMBERS, 2.5]:
        refused(nowhere, "max_delivery_count=.* must be a whole number, not", True, max_delivery_count=value)
    for number in (0, -1):
        refused(nowhere, f"max_delivery_count={number} must be positive", False, max_delivery_count=number)
    for fine in (1, None):
        RedisMessageQueue(NAME, client=nowhere, max_delivery_count=fine)


async def test_no_timeout_is_at_most_once_and_must_be_said_in_full(nowhere: StreamClient) -> None:
    words = "delivered once and never taken back; set a timeout, or max_delivery_count=None"
    refused(nowhere, words, False, visibility_timeout_seconds=None)
    refused(nowhere, words, False, visibility_timeout_seconds=None, max_delivery_count=3)
    queue = RedisMessageQueue(NAME, client=nowhere, visibility_timeout_seconds=None, max_delivery_count=None)
    assert queue._gateway.is_at_most_once


async def test_the_heartbeat(nowhere: StreamClient) -> None:
    option = "heartbeat_interval_seconds"
    for value in NO_NUMBERS:
        refused(nowhere, f"{option}=.* must be a number of seconds, not", True, **{option: value})
    for number in (0, -1, math.inf, math.nan):
        refused(nowhere, f"{option}=.* must be a positive, finite number", False, **{option: number})
    for long in (5, 6, 100):
        words = f"{option}={long} must be less than half of the visibility timeout of 10 s.*use 3.33"
        refused(nowhere, words, False, visibility_timeout_seconds=10, **{option: long})
    RedisMessageQueue(NAME, client=nowhere, visibility_timeout_seconds=10, heartbeat_interval_seconds=4.9)
    none = {"visibility_timeout_seconds": None, "max_delivery_count": None}
    refused(nowhere, f"{option} needs a visibility timeout", False, **none, **{option: 5})
    refused(
        nowhere,
        f"{option} needs a visibility timeout",
        False,
        gateway=RedisGateway(redis_client=nowhere),
        **{option: 5},
    )
    leased = RedisGateway(redis_client=nowhere, message_visibility_timeout_seconds=10)
    refused(nowhere, "less than half", False, gateway=leased, **{option: 5})
    RedisMessageQueue(NAME, gateway=leased, heartbeat_interval_seconds=3)


async def test_the_callback_of_the_heartbeat(nowhere: StreamClient) -> None:
    option, beats = "on_heartbeat_failure", {"heartbeat_interval_seconds": 30}
    refused(nowhere, f"{option} needs heartbeat_interval_seconds", False, **{option: print})
    for value in ("print", 42, [print]):
        refused(nowhere, f"{option} must be a function that takes no arguments, not", True, **beats, **{option: value})
    refused(
        nowhere,
        "on_heartbeat_failure is called with no arguments, which its signature does not accept",
        True,
        **beats,
        **{option: lambda reason: reason},
    )
    for fine in (print, lambda reason="": reason, lambda *args: args, Flag().is_set):
        RedisMessageQueue(NAME, client=nowhere, **beats, **{option: fine})


async def test_the_longest_processing(nowhere: StreamClient) -> None:
    refused(nowhere, "max_processing_seconds='1' must be a number", True, max_processing_seconds="1")
    refused(nowhere, "max_processing_seconds=0 must be a positive", False, max_processing_seconds=0)


# --- the rest of the queue --------------------------------------------------------------------------


async def test_the_interrupt_must_be_a_handler(nowhere: StreamClient) -> None:
    words = "interrupt must be a GracefulInterruptHandler, an EventDrivenInterruptHandler or .*, not"
    for value in (Flag(), True, lambda: False):
        refused(nowhere, words, True, interrupt=value)
        gateway_refused(nowhere, words, True, interrupt=value)


async def test_failures_and_delays(nowhere: StreamClient) -> None:
    refused(nowhere, "on_failure='drop' must be one of retry, terminal", False, on_failure="drop")
    for option in ("retry_delay_seconds", "max_retry_delay_seconds"):
        refused(nowhere, f"{option}='1' must be a number of seconds", True, **{option: "1"})
        refused(nowhere, f"{option}=0 must be a positive", False, **{option: 0})
    words = "retry_delay_seconds=61 must not exceed max_retry_delay_seconds=60"
    refused(nowhere, words, False, retry_delay_seconds=61)


async def test_back_pressure(nowhere: StreamClient) -> None:
    for value in [*NO_NUMBERS, 2.5]:
        refused(nowhere, "max_pending_length=.* must be a whole number", True, max_pending_length=value)
    refused(nowhere, "max_pending_length=0 must be positive", False, max_pending_length=0)
    words = "pending_overload_policy='block' needs max_pending_length"
    refused(nowhere, words, False, pending_overload_policy="block")
    words = "pending_overload_policy='drop' must be one of raise, block, drop_oldest"
    refused(nowhere, words, False, pending_overload_policy="drop", max_pending_length=3)


async def test_events_need_a_plain_function(nowhere: StreamClient) -> None:
    for value in ("print", 42):
        refused(nowhere, "on_event must be a function that takes one event, not", True, on_event=value)
        gateway_refused(nowhere, "on_event must be a function that takes one event, not", True, on_event=value)


# --- the gateway ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "may_be_zero"),
    [
        ("retry_budget_seconds", True),
        ("retry_max_delay_seconds", False),
        ("retry_initial_delay_seconds", False),
        ("message_deduplication_log_ttl_seconds", False),
        ("message_wait_interval_seconds", True),
        ("message_visibility_timeout_seconds", False),
        ("pending_block_timeout_seconds", False),
    ],
)
async def test_the_times_of_a_gateway(nowhere: StreamClient, option: str, may_be_zero: bool) -> None:
    for value in NO_NUMBERS:
        gateway_refused(nowhere, f"{option}=.* must be a number of seconds, not", True, **{option: value})
    for number in (-1, math.inf, math.nan, *(() if may_be_zero else (0,))):
        gateway_refused(nowhere, f"{option}=.* must be a .*finite number of seconds", False, **{option: number})
    if may_be_zero:
        RedisGateway(redis_client=nowhere, **{option: 0})


async def test_the_first_delay_of_a_gateway_is_not_longer_than_the_longest(nowhere: StreamClient) -> None:
    words = "retry_initial_delay_seconds=6 must not exceed retry_max_delay_seconds=5.0"
    gateway_refused(nowhere, words, False, retry_initial_delay_seconds=6)


async def test_a_limit_of_a_gateway_needs_leases_and_a_place_for_dead_letters(nowhere: StreamClient) -> None:
    for value in [*NO_NUMBERS, 2.5]:
        gateway_refused(nowhere, "max_delivery_count=.* must be a whole number", True, max_delivery_count=value)
    words = "max_delivery_count needs message_visibility_timeout_seconds"
    gateway_refused(nowhere, words, False, max_delivery_count=3, dead_letter_queue="dead")
    leased = {"message_visibility_timeout_seconds": 30, "max_delivery_count": 3}
    gateway_refused(nowhere, "max_delivery_count needs dead_letter_queue, the name", False, **leased)
    gateway_refused(nowhere, "dead_letter_queue must be a str, not int", True, dead_letter_queue=5, **leased)
    gateway_refused(nowhere, "dead_letter_queue must not be blank", False, dead_letter_queue=" ", **leased)


async def test_a_gateway_needs_a_client(nowhere: StreamClient) -> None:
    for wrong in (None, "redis://localhost", object(), redis.asyncio.ConnectionPool):
        gateway_refused(nowhere, "redis_client must be a redis-py client or a StreamClient", True, redis_client=wrong)


async def test_the_defaults_are_those_of_redis_message_queue(nowhere: StreamClient) -> None:
    queue = RedisMessageQueue(NAME, client=nowhere)
    gateway = queue._gateway
    assert (gateway.message_visibility_timeout_seconds, gateway.max_delivery_count) == (300, 10)
    assert gateway.dead_letter_queue == "orders::dlq"
    assert gateway.message_wait_interval_seconds == 5
    bare = RedisGateway(redis_client=nowhere)
    assert (bare.message_visibility_timeout_seconds, bare.max_delivery_count, bare.dead_letter_queue) == (None,) * 3
