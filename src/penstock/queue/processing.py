"""Processing: the context manager in which one message is processed."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from penstock.errors import text_of
from penstock.events import EventName
from penstock.keys import QueueKeys
from penstock.policy import AttemptLimits, GiveUp, RetryAfter, after_failure
from penstock.queue.abstract_gateway import AbstractRedisGateway, Delivery, StopRenewal
from penstock.queue.model import MessageData
from penstock.queue.options import QueueOptions
from penstock.runtime.aio import call_in_loop, comes_from_outside, connection_scope, runner, shielded
from penstock.runtime.user_functions import call_back

logger = logging.getLogger("penstock.queue")
_LONGEST_CLEANUP_S = 86_400.0  # the retry budget of the gateway bounds it
_RNG = random.Random()


class Processing:
    """The context manager of `queue.process_message()`.

    Guarantees: leaving the body without an exception settles the message as completed. An exception is a failed
    attempt, and is raised to the caller. A cancelled body hands the message back and counts no attempt.
    """

    def __init__(
        self, gateway: AbstractRedisGateway, key: QueueKeys, options: QueueOptions,
        is_stopped: Callable[[], bool], entered: Callable[[Processing], None], left: Callable[[Processing], None],
        emit: Callable[..., None],
    ) -> None:  # fmt: skip
        self._gateway, self._key, self._options, self._emit = gateway, key, options, emit
        self._is_stopped, self._entered, self._left = is_stopped, entered, left
        self._delivery: Delivery | None = None
        self._stop_renewal: StopRenewal | None = None
        self._is_ending = False
        self._runner: object = None
        self.lease_lost = False
        """Whether the lease was lost: another consumer may have the message, and this one can no longer settle it."""

    @property
    def is_mine(self) -> bool:
        """Whether the calling task or thread processes the message."""
        return self._runner is runner()

    @property
    def message_id(self) -> str | None:
        """The id of the message, if the broker has one."""
        return self._delivery.id if self._delivery else None

    @property
    def lease_token(self) -> str | None:
        """Identifies this delivery of the message; starts with a number that increases with each delivery."""
        return self._delivery.token if self._delivery else None

    @property
    def delivery_count(self) -> int:
        """How often the message was delivered, including this time."""
        return self._delivery.deliveries if self._delivery else 0

    @property
    def attempts(self) -> int:
        """How often a handler began with it, including this time."""
        return self._delivery.attempts if self._delivery else 0

    async def __aenter__(self) -> MessageData | None:
        """Take the next message; return None if there was none."""
        self._delivery = self._stop_renewal = None  # a context may be entered again
        self._is_ending, self._runner, self.lease_lost = False, runner(), False
        self._entered(self)  # before the check: drain() waits for all that may begin
        try:
            delivery = None if self._is_stopped() else await self._gateway.take(self._key, self._is_stopped)
            if delivery is None:
                self._left(self)
                return None
            self._delivery = delivery
            if self._is_stopped():
                # It arrived while stopping, when nothing new may begin.
                await shielded(_LONGEST_CLEANUP_S, self._return_unbegun, delivery)
                return None
            options = self._options
            if options.heartbeat_s is not None:
                self._stop_renewal = await delivery.keep_lease(
                    options.heartbeat_s, options.max_processing_s, self._lost_from_outside()
                )
        except BaseException:
            self._left(self)
            raise
        return delivery.payload

    async def _return_unbegun(self, delivery: Delivery) -> None:
        try:
            await self._retry(delivery, 0.0, counts=False)
        except Exception:
            logger.exception(
                "message %s of queue %s could not be returned; it is delivered again when its lease expires",
                delivery.id,
                self._key.name,
            )
        finally:
            self._delivery = None
            self._left(self)

    def _lost_from_outside(self) -> Callable[[str], None]:
        scope, delivery = connection_scope(), self._delivery

        def is_in_hand() -> bool:
            # The lease of a message that could not be settled is kept: this context may have another one by now.
            return self._delivery is delivery and not self._is_ending

        def lost(reason: str) -> None:
            if is_in_hand():
                self.lease_lost = True  # immediately: the handler may check it while it blocks the event loop
                call_in_loop(scope, lose, reason)

        def lose(reason: str) -> None:
            if is_in_hand():
                self._lose(reason)

        return lost

    def _lose(self, reason: str) -> None:
        logger.warning("message %s of queue %s: %s", self.message_id, self._key.name, reason)
        self._emit(EventName.LEASE_LOST, ids=[self.message_id] if self.message_id else [], reason=reason)
        if self._options.on_heartbeat_failure is not None:
            call_back(self._options.on_heartbeat_failure, "on_heartbeat_failure")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle the message, even if the caller is cancelled meanwhile."""
        delivery = self._delivery
        if delivery is None:
            return
        self._is_ending = True
        cancelled: BaseException | None = None
        try:
            if error is None:
                if self._options.completed_length == 0:
                    is_done, cancelled = await delivery.finish_quickly(self._is_stopped)
                    if is_done:
                        self._emit(EventName.COMPLETED, id=delivery.id)
                        return
                await shielded(_LONGEST_CLEANUP_S, self._complete, delivery)
            else:
                is_external = comes_from_outside(error)  # here, because the clean-up runs in another task
                await shielded(_LONGEST_CLEANUP_S, self._fail_quietly, delivery, error, is_external)
        finally:
            self._left(self)
            if self._stop_renewal is not None:
                await shielded(_LONGEST_CLEANUP_S, self._stop_renewal)
            if cancelled is not None:
                raise cancelled

    # --- the end ------------------------------------------------------------------------------------

    async def _complete(self, delivery: Delivery) -> None:
        most = self._options.completed_length
        is_done = await delivery.finish(None if most == 0 else self._key.completed, most)
        self._report(is_done, "completed", EventName.COMPLETED)

    async def _fail_quietly(self, delivery: Delivery, error: BaseException, is_external: bool) -> None:
        # The caller must get the handler's exception, so errors here are logged.
        try:
            await self._fail(delivery, error, is_external)
        except Exception:
            logger.exception(
                "message %s of queue %s could not be settled after its handler failed", delivery.id, self._key.name
            )
        if not is_external:
            self._note(delivery, error)

    async def _fail(self, delivery: Delivery, error: BaseException, is_external: bool) -> None:
        has_one_chance = self._gateway.is_at_most_once
        if is_external and not has_one_chance:  # not the message's fault: no attempt is counted
            await self._retry(delivery, 0.0, counts=False)
            return
        self._emit(EventName.FAILED, id=delivery.id, error=text_of(error, repr), attempts=delivery.attempts)
        kept = self._options.failed_length
        log = None if kept == 0 else self._key.failed
        if self._options.on_failure == "terminal":
            self._report(await delivery.discard(error, log, kept), "discarded", EventName.DISCARDED)
            return
        if log is not None:
            await delivery.note_failure(error, log, kept)
        limits = AttemptLimits(None, 1 if has_one_chance else self._gateway.max_delivery_count)
        verdict = after_failure(error, delivery.deliveries, delivery.attempts, limits, self._options.backoff, _RNG)
        if isinstance(verdict, RetryAfter) and not has_one_chance:
            await self._retry(delivery, verdict.after_ms / 1000, counts=verdict.counts)
        else:
            reason = verdict.reason if isinstance(verdict, GiveUp) else None
            self._report(await delivery.dead_letter(reason, error), "dead-lettered", None)

    def _note(self, delivery: Delivery, error: BaseException) -> None:
        # The caller logs the error, once: only the message is missing there.
        note = f"message {delivery.id} of queue {self._key.name}, attempt {delivery.attempts}"
        with suppress(Exception):  # an error may refuse notes
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

    async def _retry(self, delivery: Delivery, delay_s: float, *, counts: bool) -> None:
        is_done = await delivery.retry(delay_s, counts=counts)
        self._report(is_done, "retried", EventName.RETRIED, delay_s=delay_s, counts=counts)

    def _report(self, is_done: bool, what: str, name: EventName | None, **fields: object) -> None:
        if not is_done:
            self.lease_lost = True
            logger.warning(
                "message %s of queue %s was not %s: its lease expired and another consumer has it",
                self.message_id, self._key.name, what,
            )  # fmt: skip
            self._emit(EventName.STALE, id=self.message_id, what=what)
        elif name is not None:
            self._emit(name, id=self.message_id, **fields)
