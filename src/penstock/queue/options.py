"""Checks of the options of queues and gateways: each raises an error that says what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from penstock.errors import ConfigurationError, ConfigurationTypeError
from penstock.number_checks import check_number, check_seconds
from penstock.policy import Backoff
from penstock.queue.interrupt import BaseGracefulInterruptHandler
from penstock.queue.model import Message, content_key, literal_key
from penstock.type_checks import check_arguments, is_async

OnFailure: TypeAlias = Literal["retry", "terminal"]
Overload: TypeAlias = Literal["raise", "block", "drop_oldest"]
DedupKey: TypeAlias = Callable[[Message], str] | Callable[[Message], Awaitable[str]]
_DEFAULT_LENGTH = 1_000
_JITTER = 0.1


class Unset:
    """The default of options for which None has a meaning."""

    def __repr__(self) -> str:
        """Show it in signatures."""
        return "<default>"


UNSET = Unset()


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How a queue treats its messages, with any broker."""

    make_key: DedupKey | None  # None = no deduplication
    completed_length: int | None  # 0 = no log, None = a log without an end
    failed_length: int | None
    heartbeat_s: float | None
    max_processing_s: float
    on_heartbeat_failure: Callable[[], Any] | None
    on_failure: OnFailure
    backoff: Backoff


def check_flag(name: str, value: object) -> bool:
    """Return the value if it is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationTypeError(f"{name}={value!r} must be True or False, not {type(value).__name__}")
    return value


def check_sink(sink: object) -> None:
    """Raise ConfigurationTypeError unless it is None or a plain function."""
    if sink is None:
        return
    if not callable(sink):
        raise ConfigurationTypeError(f"on_event must be a function that takes one event, not {type(sink).__name__}")
    if is_async(sink):
        raise ConfigurationTypeError(
            "on_event must be a plain function, not async: it is called in the middle of other work"
        )


def checked_key_maker(is_on: object, make: DedupKey | Unset | None, *, is_async: bool) -> DedupKey | None:
    """Return the function that makes deduplication keys, or None."""
    check_flag("deduplication", is_on)
    if not is_on:
        if make is not None and not isinstance(make, Unset):
            raise ConfigurationError("get_deduplication_key has no effect with deduplication=False: remove one of them")
        return None
    if isinstance(make, Unset):
        return content_key
    if make is None:
        return literal_key
    if not callable(make):
        raise ConfigurationTypeError(
            f"get_deduplication_key must be a function that takes a message, or None, not {type(make).__name__}"
        )
    _check_is_plain("get_deduplication_key", make, may_be_async=is_async)
    return make


def _check_is_plain(name: str, function: Callable[..., object], *, may_be_async: bool) -> None:
    if not may_be_async and is_async(function):
        raise ConfigurationTypeError(f"{name} is async: use penstock.RedisMessageQueue, or pass a plain function")


def checked_log_length(kind: str, is_on: object, length: int | None) -> int | None:
    """Return how many records the completed or failed log keeps: 0 = there is none, None = all."""
    check_flag(f"enable_{kind}_queue", is_on)
    if length is not None:
        check_number(f"max_{kind}_length", length)
    if not is_on and length != _DEFAULT_LENGTH:
        raise ConfigurationError(f"max_{kind}_length needs enable_{kind}_queue=True")
    return length if is_on else 0


def check_leases(name: str, timeout: object, max_deliveries: object) -> None:
    """Raise unless the lease, an option of that name, and the limit of deliveries fit together."""
    if timeout is not None:
        check_seconds(name, timeout)
    if max_deliveries is not None:
        check_number("max_delivery_count", max_deliveries)
        if timeout is None:
            raise ConfigurationError(
                f"max_delivery_count needs {name}: with {name}=None every message is delivered once and never "
                "taken back; set a timeout, or max_delivery_count=None"
            )


def checked_heartbeat(interval: object, lease_s: float | None, on_failure: object, *, is_async: bool) -> float | None:
    """Return the interval of the heartbeats; a lease must outlast two of them."""
    if on_failure is not None:
        _check_callback(on_failure, is_async=is_async)
        if interval is None:
            raise ConfigurationError(
                "on_heartbeat_failure needs heartbeat_interval_seconds: without it there are no heartbeats"
            )
    if interval is None:
        return None
    interval_s = check_seconds("heartbeat_interval_seconds", interval)
    if lease_s is None:
        raise ConfigurationError(
            "heartbeat_interval_seconds needs a visibility timeout: without one there is no lease to renew"
        )
    if interval_s >= lease_s / 2:
        raise ConfigurationError(
            f"heartbeat_interval_seconds={interval_s} must be less than half of the visibility timeout of "
            f"{lease_s} s; otherwise one missed heartbeat loses the lease: use {lease_s / 3:g}"
        )
    return interval_s


def _check_callback(callback: object, *, is_async: bool) -> None:
    if not callable(callback):
        raise ConfigurationTypeError(
            f"on_heartbeat_failure must be a function that takes no arguments, not {type(callback).__name__}"
        )
    _check_is_plain("on_heartbeat_failure", callback, may_be_async=is_async)
    check_arguments("on_heartbeat_failure", callback, 0)


def checked_backoff(policy: object, delay: object, longest: object) -> Backoff:
    """Return how long a message waits after its handler failed."""
    if policy not in get_args(OnFailure):
        raise ConfigurationError(f"on_failure={policy!r} must be one of {', '.join(get_args(OnFailure))}")
    first_s, longest_s = check_seconds("retry_delay_seconds", delay), check_seconds("max_retry_delay_seconds", longest)
    if first_s > longest_s:
        raise ConfigurationError(f"retry_delay_seconds={first_s} must not exceed max_retry_delay_seconds={longest_s}")
    return Backoff(max(1, round(first_s * 1000)), max(1, round(longest_s * 1000)), _JITTER)


# --- of gateways ------------------------------------------------------------------------------------


def check_retries(budget_s: object, initial_s: float, longest_s: float) -> None:
    """Raise unless the options for retries are valid."""
    check_seconds("retry_budget_seconds", budget_s, may_be_zero=True)
    check_seconds("retry_max_delay_seconds", longest_s)
    check_seconds("retry_initial_delay_seconds", initial_s)
    if initial_s > longest_s:
        raise ConfigurationError(
            f"retry_initial_delay_seconds={initial_s} must not exceed retry_max_delay_seconds={longest_s}"
        )


def check_interrupt(interrupt: object) -> BaseGracefulInterruptHandler | None:
    """Return the interrupt handler if it is None or valid."""
    if interrupt is not None and not isinstance(interrupt, BaseGracefulInterruptHandler):
        raise ConfigurationTypeError(
            f"interrupt must be a GracefulInterruptHandler, an EventDrivenInterruptHandler or another "
            f"BaseGracefulInterruptHandler, not {type(interrupt).__name__}"
        )
    return interrupt


def check_dead_letter_queue(name: object, max_deliveries: int | None) -> None:
    """Raise unless there is a dead-letter queue for messages beyond the limit of deliveries."""
    if name is None:
        if max_deliveries is not None:
            raise ConfigurationError(
                "max_delivery_count needs dead_letter_queue, the name of the queue that stores messages beyond "
                "the limit"
            )
    elif not isinstance(name, str):
        raise ConfigurationTypeError(f"dead_letter_queue must be a str, not {type(name).__name__}")
    elif not name.strip():
        raise ConfigurationError("dead_letter_queue must not be blank: use a name such as 'orders::dlq'")


def check_overload(max_pending: int | None, policy: object, block_timeout_s: float) -> None:
    """Raise unless the options for full queues are valid."""
    if max_pending is not None:
        check_number("max_pending_length", max_pending)
    if policy not in get_args(Overload):
        raise ConfigurationError(f"pending_overload_policy={policy!r} must be one of {', '.join(get_args(Overload))}")
    if policy != "raise" and max_pending is None:
        raise ConfigurationError(f"pending_overload_policy={policy!r} needs max_pending_length")
    check_seconds("pending_block_timeout_seconds", block_timeout_s)
