"""What a gateway may be told, checked at once: each rule with a message that names the fix."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from penstock.errors import ConfigurationError, ConfigurationTypeError
from penstock.number_checks import check_number, check_seconds
from penstock.queue.interrupt import BaseGracefulInterruptHandler

Overload: TypeAlias = Literal["raise", "block", "drop_oldest"]


def check_interrupt(interrupt: object) -> BaseGracefulInterruptHandler | None:
    """Return the handler if it is one."""
    if interrupt is not None and not isinstance(interrupt, BaseGracefulInterruptHandler):
        raise ConfigurationTypeError(
            f"interrupt must be a GracefulInterruptHandler, an EventDrivenInterruptHandler or another "
            f"BaseGracefulInterruptHandler, not {type(interrupt).__name__}"
        )
    return interrupt


def check_leases(lease_s: float | None, max_deliveries: int | None, dead_letters: str | None) -> None:
    """Raise unless lease, limit and dead letters go together."""
    if lease_s is not None:
        check_seconds("message_visibility_timeout_seconds", lease_s)
    if max_deliveries is not None:
        check_number("max_delivery_count", max_deliveries)
        if lease_s is None:
            raise ConfigurationError(
                "max_delivery_count needs message_visibility_timeout_seconds: without leases a message is handed out "
                "once"
            )
        if dead_letters is None:
            raise ConfigurationError(
                "max_delivery_count needs dead_letter_queue, the name of the queue for messages beyond it"
            )
    if dead_letters is not None:
        if not isinstance(dead_letters, str):
            raise ConfigurationTypeError(f"dead_letter_queue must be a str, not {type(dead_letters).__name__}")
        if not dead_letters.strip():
            raise ConfigurationError("dead_letter_queue must not be blank: name it, for example 'orders::dlq'")


def check_overload(max_pending: int | None, policy: object, block_timeout_s: float) -> None:
    """Raise unless it is clear what becomes of a message for which there is no room."""
    if max_pending is not None:
        check_number("max_pending_length", max_pending)
    if policy not in get_args(Overload):
        raise ConfigurationError(f"pending_overload_policy={policy!r} must be one of {', '.join(get_args(Overload))}")
    if policy != "raise" and max_pending is None:
        raise ConfigurationError(f"pending_overload_policy={policy!r} needs max_pending_length")
    check_seconds("pending_block_timeout_seconds", block_timeout_s)
