"""RedisMessageQueue: publish() and process_message()."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigurationError, ConfigurationTypeError, GatewayContractError, QueueDrained
from penstock.events import Emitter, EventName, EventSink
from penstock.keys import QueueKeys, check_dead_letters
from penstock.number_checks import check_number, check_seconds
from penstock.queue.abstract_gateway import AbstractRedisGateway
from penstock.queue.gateway import RedisGateway
from penstock.queue.interrupt import BaseGracefulInterruptHandler
from penstock.queue.model import GROUP, Message, MessageData, QueueStats, canonical, checked_key, content_key
from penstock.queue.options import (
    UNSET,
    DedupKey,
    OnFailure,
    Overload,
    QueueOptions,
    Unset,
    check_interrupt,
    check_leases,
    check_sink,
    checked_backoff,
    checked_heartbeat,
    checked_key_maker,
    checked_log_length,
)
from penstock.queue.processing import Processing
from penstock.redis.client import StreamClient
from penstock.redis.driver_kinds import DriverClient
from penstock.redis.from_driver import client_of
from penstock.runtime.aio import IS_ASYNC, Flag
from penstock.serializers import DEFAULT_MAX_DEPTH, PayloadLimits

_DEFAULT_LEASE_S = 300
_DEFAULT_DELIVERIES = 10
_LONGEST_LEASE_S = 43_200.0  # half a day


class RedisMessageQueue:
    """A queue of texts and dicts.

    Messages are delivered at least once, or at most once with `visibility_timeout_seconds=None`. If a handler raises,
    the message is retried after a growing delay, up to `max_delivery_count` runs, then dead-lettered;
    `on_failure="terminal"` gives it up after the first failure and records it in the failed log, if that is enabled.
    """

    def __init__(
        self,
        name: str,
        *,
        client: StreamClient | DriverClient | None = None,
        gateway: AbstractRedisGateway | None = None,
        deduplication: bool = True,
        get_deduplication_key: DedupKey | Unset | None = UNSET,
        enable_completed_queue: bool = False,
        enable_failed_queue: bool = False,
        max_completed_length: int | None = 1_000,
        max_failed_length: int | None = 1_000,
        visibility_timeout_seconds: float | Unset | None = UNSET,
        heartbeat_interval_seconds: float | None = None,
        on_heartbeat_failure: Callable[[], object] | None = None,
        max_processing_seconds: float = _LONGEST_LEASE_S,
        max_delivery_count: int | Unset | None = UNSET,
        interrupt: BaseGracefulInterruptHandler | None = None,
        key_separator: str = "::",
        on_failure: OnFailure = "retry",
        retry_delay_seconds: float = 1.0,
        max_retry_delay_seconds: float = 60.0,
        max_pending_length: int | None = None,
        pending_overload_policy: Overload = "raise",
        max_payload_bytes: int | Unset = UNSET,
        max_payload_depth: int = DEFAULT_MAX_DEPTH,
        on_event: EventSink | None = None,
    ) -> None:
        self.key = QueueKeys.of(name, key_separator)
        check_sink(on_event)
        self._emit, self._interrupt = Emitter(on_event, self.key.name, GROUP), check_interrupt(interrupt)
        make_key = checked_key_maker(deduplication, get_deduplication_key, is_async=IS_ASYNC)
        completed = checked_log_length("completed", enable_completed_queue, max_completed_length)
        failed = checked_log_length("failed", enable_failed_queue, max_failed_length)
        backoff = checked_backoff(on_failure, retry_delay_seconds, max_retry_delay_seconds)
        longest_s = check_seconds("max_processing_seconds", max_processing_seconds)
        self._payload = PayloadLimits(max_payload_depth=max_payload_depth)
        of_gateway = {
            "visibility_timeout_seconds": visibility_timeout_seconds,
            "max_delivery_count": max_delivery_count,
            "max_pending_length": UNSET if max_pending_length is None else max_pending_length,
            "pending_overload_policy": UNSET if pending_overload_policy == "raise" else pending_overload_policy,
            "max_payload_bytes": max_payload_bytes,
            "interrupt": UNSET if interrupt is None else interrupt,
        }
        given = {option: value for option, value in of_gateway.items() if value is not UNSET}
        if (client is None) == (gateway is None):
            raise ConfigurationError("pass exactly one of client (a redis-py client or a StreamClient) and gateway")
        self._is_draining, self._processings, self._has_one_left = False, set[Processing](), Flag()
        self._gateway = self._made(client, given) if gateway is None else self._checked(gateway, given)
        self._bind(self._gateway)
        lease_s = self._gateway.message_visibility_timeout_seconds
        heartbeat_s = checked_heartbeat(heartbeat_interval_seconds, lease_s, on_heartbeat_failure, is_async=IS_ASYNC)
        self._options = QueueOptions(
            make_key, completed, failed, heartbeat_s, longest_s, on_heartbeat_failure, on_failure, backoff
        )

    def _made(self, client: Any, given: dict[str, Any]) -> AbstractRedisGateway:
        lease_s = given.pop("visibility_timeout_seconds", _DEFAULT_LEASE_S)
        most = given.pop("max_delivery_count", _DEFAULT_DELIVERIES)
        check_leases("visibility_timeout_seconds", lease_s, most)
        client_of(client, "client")  # errors use the name of the queue's option
        gateway = RedisGateway(
            redis_client=client,
            message_visibility_timeout_seconds=lease_s,
            max_delivery_count=most,
            dead_letter_queue=self.key.dead_letter,
            on_event=self._emit.sink,
            **given,
        )
        gateway.stop_when(lambda: self._is_draining)
        return gateway

    def _checked(self, gateway: AbstractRedisGateway, given: dict[str, Any]) -> AbstractRedisGateway:
        _check_half(gateway)
        if not isinstance(gateway, RedisGateway):
            given.pop("interrupt", None)  # the queue calls it itself
        for option in given:
            own = "message_visibility_timeout_seconds" if option.startswith("visibility") else option
            raise ConfigurationError(
                f"{option} is an option of the gateway: pass {own} to the gateway, not to the queue"
            )
        if gateway.message_visibility_timeout_seconds is not None:
            check_seconds("message_visibility_timeout_seconds", gateway.message_visibility_timeout_seconds)
        return gateway

    def _bind(self, gateway: AbstractRedisGateway) -> None:
        key, dead_letters = self.key, gateway.dead_letter_queue
        if gateway.is_redis_cluster:
            key.check_one_slot(dead_letters)
        check_dead_letters(key.pending, dead_letters or "", "dead_letter_queue", is_cluster=False)
        # Dead letters belong to the gateway: two queues with one gateway would mix theirs.
        bound = key.pending
        if gateway.max_delivery_count is not None:
            bound = gateway.__dict__.setdefault("_penstock_queue", key.pending)
        if bound != key.pending:
            raise ConfigurationError(
                f"this gateway stores the dead letters of queue {bound!r}: create another gateway for queue "
                f"{key.pending!r}"
            )
        if self._emit.sink is not None:
            gateway.listen(key.pending, self._emit.sink)

    # --- messages -----------------------------------------------------------------------------------

    async def publish(self, message: Message) -> bool:
        """Add a message; return False if one with the same deduplication key was published within the window.

        Raises: EncodeError, PayloadTooLarge, QueueFull, QueueDrained, PublishUnknown, or an error of Redis that
        outlasts the retry budget.
        """
        if self._is_draining:
            raise QueueDrained(
                f"queue {self.key.name!r} was drained and accepts no more messages; create a new RedisMessageQueue"
            )
        text = canonical(message, self._payload)
        make_key = self._options.make_key
        if make_key is None:
            add: Callable[[str, str], Awaitable[object]] = self._gateway.add_message
            nothing = await add(self.key.pending, text)
            if nothing is not None:
                raise GatewayContractError(
                    f"{type(self._gateway).__name__}.add_message() must return None, not {nothing!r}"
                )
            return True
        if make_key is content_key:
            key = content_key(text)  # from the text, which is then encoded only once
        else:
            made: Any = make_key(message)
            # async only
            if not isinstance(made, str) and inspect.isawaitable(made):
                made = await made
            # end async only
            key = checked_key(made)
        is_new = await self._gateway.publish_message(self.key.pending, text, key)
        if not isinstance(is_new, bool):
            raise GatewayContractError(
                f"{type(self._gateway).__name__}.publish_message() must return True or False, not {is_new!r}"
            )
        return is_new

    def process_message(self) -> Processing:
        """Return a context manager that yields the next message, or None if none arrived in time."""
        return Processing(
            self._gateway, self.key, self._options, self._is_stopped, self._processings.add, self._processing_left,
            self._emit,
        )  # fmt: skip

    def _processing_left(self, processing: Processing) -> None:
        self._processings.discard(processing)
        if self._is_draining:
            self._has_one_left.set()

    def _is_stopped(self) -> bool:
        if self._is_draining or (self._interrupt is not None and self._interrupt.is_interrupted()):
            return True
        return self._gateway.is_interrupted()

    # --- administration -----------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """Return the number of messages in each state."""
        found = await self._gateway.administration(self.key).stats()
        return replace(
            found,
            completed=None if self._options.completed_length == 0 else found.completed,
            failed=None if self._options.failed_length == 0 else found.failed,
        )

    async def peek(self, count: int = 1, *, source: str = "pending") -> list[MessageData]:
        """Return the oldest messages in a state without taking them; for the completed and failed logs, the newest.

        `source` is pending, processing, retrying, completed, failed or dead_letter.
        """
        check_number("count", count)
        return await self._gateway.administration(self.key).peek(count, source)

    async def redrive_dead_letters(self, max_messages: int | None = None) -> int:
        """Return dead letters to the queue, oldest first; return how many."""
        if max_messages is not None:
            check_number("max_messages", max_messages)
        return len(await self._gateway.administration(self.key).redrive(max_messages))

    async def purge(self, *, target: str) -> int:
        """Delete pending messages, the completed or failed log, or dead letters; return how many.

        Messages being processed stay. The deduplication keys of purged messages are released.
        """
        return await self._gateway.administration(self.key).purge(target)

    # --- the end ------------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Whether drain() was called."""
        return self._is_draining

    async def drain(self, timeout: float | None = None) -> bool:
        """Stop publishing and processing, and wait for messages that other tasks or threads are processing.

        Returns True if all messages are settled; then the process may end without leaving a message to wait for its
        lease to expire. Called inside process_message(), it waits only for other messages.
        """
        self._is_draining = True
        deadline = None if timeout is None else time.monotonic() + timeout
        others = {processing for processing in self._processings.copy() if not processing.is_mine}
        while others & self._processings and (deadline is None or time.monotonic() < deadline):
            self._has_one_left.clear()
            if others & self._processings:
                await self._has_one_left.wait(None if deadline is None else deadline - time.monotonic())
        is_complete = not others & self._processings
        is_complete = await self._gateway.hand_back() and is_complete
        self._emit(EventName.DRAINED, is_complete=is_complete)
        return is_complete

    async def close(self) -> None:
        """Close the queue's connections and return messages of uncertain state; the client stays open."""
        await self._gateway.close()


def _check_half(gateway: object) -> None:
    if not isinstance(gateway, AbstractRedisGateway):
        if any(base.__name__ == AbstractRedisGateway.__name__ for base in type(gateway).__mro__):
            kind, there = ("synchronous", "penstock.sync") if IS_ASYNC else ("asynchronous", "penstock")
            raise ConfigurationTypeError(f"gateway is {kind}; use {there}.RedisMessageQueue")
        raise ConfigurationTypeError(
            "gateway must be a RedisGateway or a subclass of AbstractRedisGateway, not "
            f"{type(gateway).__name__}; pass a redis-py client as client="
        )
