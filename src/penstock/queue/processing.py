"""Processing: one message from the hand-out to its end, as the body of a `with`."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from types import TracebackType
from typing import Any

from penstock.errors import GatewayContractError, text_of
from penstock.events import EventName
from penstock.keys import QueueKeys
from penstock.policy import GiveUp, Limits, Retry, after_failure
from penstock.queue.abstract_gateway import AbstractRedisGateway, StopRenewal
from penstock.queue.gateway import RedisGateway
from penstock.queue.model import ClaimedMessage
from penstock.queue.options import QueueOptions
from penstock.queue.payload import MessageData
from penstock.runtime.aio import call_in_loop, comes_from_outside, home, runner, shielded
from penstock.runtime.callbacks import call_back

logger = logging.getLogger("penstock.queue")
_LONGEST_CLEANUP_S = 86_400.0  # the retry budget of the gateway bounds it
_CHANCE = random.Random()


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
        self._claimed: ClaimedMessage | None = None
        self._message: MessageData | None = None
        self._stop_renewal: StopRenewal | None = None
        self._is_ending = False
        self._runner: object = None
        self.lease_lost = False
        """Whether the lease could not be kept: another consumer may have the message, and this one's end is refused."""

    @property
    def is_mine(self) -> bool:
        """Whether it is the calling task or thread that processes the message."""
        return self._runner is runner()

    @property
    def message_id(self) -> str | None:
        """The id of the message, where the broker knows one."""
        return self._claimed.message_id if self._claimed else None

    @property
    def lease_token(self) -> str | None:
        """What tells this hand-out from every other one of the message: it begins with a number that rises."""
        return self._claimed.lease_token if self._claimed else None

    @property
    def delivery_count(self) -> int:
        """How often the message was handed out, this time included."""
        return self._claimed.delivery_count if self._claimed else 0

    @property
    def attempts(self) -> int:
        """How often a handler began with it, this time included."""
        return self._claimed.attempts if self._claimed else 0

    async def __aenter__(self) -> MessageData | None:
        """Take the next message; None = there was none."""
        self._claimed = self._message = self._stop_renewal = None  # a context may be entered again
        self._is_ending, self._runner, self.lease_lost = False, runner(), False
        self._entered(self)  # before the question: who drains waits for all that may have been told to begin
        try:
            self._message = None if self._is_stopped() else await self._take()
            if self._message is None:
                self._left(self)
                return None
            if self._is_stopped():
                # It came while the wait was on its way to its end. Who was told to stop begins nothing.
                await shielded(_LONGEST_CLEANUP_S, self._return_unbegun)
                return None
            if self._claimed is not None and self._options.heartbeat_s is not None:
                self._stop_renewal = await self._gateway.keep_lease(
                    self._key.processing, self._claimed, self._options.heartbeat_s, self._options.max_processing_s,
                    self._lost_from_outside(),
                )  # fmt: skip
        except BaseException:
            self._left(self)
            raise
        return self._message

    async def _take(self) -> MessageData | None:
        gateway, pending, processing = self._gateway, self._key.pending, self._key.processing
        if not isinstance(gateway, RedisGateway):
            found = await gateway.wait_for_message_and_move(pending, processing)
            return None if found is None else self._accept(found)
        claimed = await gateway.wait_for_message_and_move(pending, processing, is_stopped=self._is_stopped)
        if claimed is None:
            return None
        if type(gateway) is not RedisGateway:
            return self._accept(claimed)
        self._claimed = claimed  # ours needs no supervision
        return claimed.stored_message

    async def _return_unbegun(self) -> None:
        try:
            await self._return(0.0, counts=False)
        except Exception:
            logger.exception("%s of %s was not handed back: its lease must run out", self.message_id, self._key.name)
        finally:
            self._claimed = self._message = None
            self._left(self)

    def _accept(self, found: ClaimedMessage | MessageData) -> MessageData:
        has_leases = self._gateway.message_visibility_timeout_seconds is not None
        if isinstance(found, ClaimedMessage):
            if has_leases and not found.lease_token:
                raise GatewayContractError(
                    f"{type(self._gateway).__name__} has leases but returned a message without a lease_token: settling "
                    f"it could settle the message of another consumer"
                )
            if has_leases and not isinstance(found.lease_token, str):
                raise GatewayContractError(f"lease_token must be a str, not {type(found.lease_token).__name__}")
            _check_payload(self._gateway, found.stored_message)
            self._claimed = found
            return found.stored_message
        if has_leases:
            raise GatewayContractError(
                f"{type(self._gateway).__name__} has message_visibility_timeout_seconds but returned a plain "
                f"{type(found).__name__}: return ClaimedMessage(stored_message, lease_token)"
            )
        _check_payload(self._gateway, found)
        return found

    def _lost_from_outside(self) -> Callable[[str], None]:
        here = home()

        def lost(reason: str) -> None:
            if not self._is_ending:
                self.lease_lost = True  # at once: the handler may block the event loop, and look
                call_in_loop(here, self._lose, reason)

        return lost

    def _lose(self, reason: str) -> None:
        if self._is_ending:
            return
        logger.warning("%s of %s: %s", self.message_id, self._key.name, reason)
        self._emit(EventName.RENEWAL_FAILED, id=self.message_id, reason=reason)
        if self._options.on_heartbeat_failure is not None:
            call_back(self._options.on_heartbeat_failure, "on_heartbeat_failure")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle the message: finished whatever happens to the caller meanwhile."""
        if self._message is None:
            return
        self._is_ending = True
        cancelled: BaseException | None = None
        try:
            if error is None:
                if self._options.completed_length == 0 and isinstance(self._gateway, RedisGateway):
                    is_done, cancelled = await self._gateway.remove_quickly(self.lease_token or "", self._is_stopped)
                    if is_done:
                        self._emit(EventName.COMPLETED, id=self.message_id)
                        return
                await shielded(_LONGEST_CLEANUP_S, self._complete)
            else:
                is_innocent = comes_from_outside(error)  # asked here: the clean-up is a task of its own
                await shielded(_LONGEST_CLEANUP_S, self._fail_quietly, error, is_innocent)
        finally:
            self._left(self)
            if self._stop_renewal is not None:
                await shielded(_LONGEST_CLEANUP_S, self._stop_renewal)
            if cancelled is not None:
                raise cancelled

    # --- the end ------------------------------------------------------------------------------------

    @property
    def _handle(self) -> tuple[MessageData, dict[str, Any]]:
        assert self._message is not None
        return self._message, {"lease_token": self._claimed.lease_token if self._claimed else None}

    async def _complete(self) -> None:
        message, token = self._handle
        if self._options.completed_length == 0:
            is_done = await self._gateway.remove_message(self._key.processing, message, **token)
        else:
            is_done = await self._gateway.log_message(
                self._key.processing, self._key.completed, message, max_length=self._options.completed_length, **token
            )
        if self._is_settled(is_done):
            self._emit(EventName.COMPLETED, id=self.message_id)
        else:
            self._stale("completed")

    async def _fail_quietly(self, error: BaseException, is_innocent: bool) -> None:
        # The handler's exception is what the caller must see: what goes wrong here is logged.
        try:
            await self._fail(error, is_innocent)
        except Exception:
            logger.exception("%s of %s could not be settled after its failure", self.message_id, self._key.name)

    async def _fail(self, error: BaseException, is_innocent: bool) -> None:
        has_one_chance = self._gateway.is_at_most_once
        if is_innocent and not has_one_chance:  # not the message's fault: no attempt is counted
            await self._return(0.0, counts=False)
            return
        self._emit(EventName.FAILED, id=self.message_id, error=text_of(error, repr), attempts=self.attempts)
        if self._options.on_failure == "terminal":
            await self._discard(error)
            return
        if self._options.failed_length != 0 and self._claimed is not None:
            await self._gateway.note_failure(self._key.failed, self._claimed, error, self._options.failed_length)
        most = 1 if has_one_chance else self._gateway.max_delivery_count
        limits = Limits(None, most)
        verdict = after_failure(error, self.delivery_count, self.attempts, limits, self._options.backoff, _CHANCE)
        if isinstance(verdict, Retry) and not has_one_chance:
            await self._return(verdict.after_ms / 1000, counts=verdict.counts)
        else:
            await self._dead_letter(verdict, error)

    async def _return(self, delay_s: float, *, counts: bool) -> None:
        message, token = self._handle
        is_done = await self._gateway.return_message(
            self._key.processing, self._key.pending, message, delay_seconds=delay_s, counts=counts, **token
        )
        if self._is_settled(is_done):
            self._emit(EventName.RETURNED, id=self.message_id, delay_s=delay_s, counts=counts)
        else:
            self._stale("returned")

    async def _dead_letter(self, verdict: object, error: BaseException) -> None:
        message, token = self._handle
        reason = {"reason": verdict.reason} if isinstance(verdict, GiveUp) else {}
        is_done = await self._gateway.dead_letter_message(self._key.processing, message, error=error, **reason, **token)
        if not self._is_settled(is_done):
            self._stale("dead-lettered")

    async def _discard(self, error: BaseException) -> None:
        message, token = self._handle
        if self._options.failed_length == 0:
            is_done = await self._gateway.discard_message(self._key.processing, message, error=error, **token)
        else:
            is_done = await self._gateway.log_message(
                self._key.processing, self._key.failed, message, max_length=self._options.failed_length, error=error,
                **token,
            )  # fmt: skip
        if self._is_settled(is_done):
            self._emit(EventName.DISCARDED, id=self.message_id)
        else:
            self._stale("discarded")

    def _is_settled(self, answer: object) -> bool:
        if not isinstance(answer, bool):
            raise GatewayContractError(
                f"{type(self._gateway).__name__} must return True or False, not {answer!r}, when a message is settled"
            )
        return answer

    def _stale(self, what: str) -> None:
        self.lease_lost = True
        logger.warning(
            "%s of %s was not %s: its lease had run out, and it belongs to another consumer by now",
            self.message_id, self._key.name, what,
        )  # fmt: skip
        self._emit(EventName.STALE, id=self.message_id, what=what)


def _check_payload(gateway: AbstractRedisGateway, message: object) -> None:
    if not isinstance(message, str | bytes):
        raise GatewayContractError(
            f"{type(gateway).__name__} returned a {type(message).__name__}: return ClaimedMessage, str or bytes"
        )
