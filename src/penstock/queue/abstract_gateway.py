"""AbstractRedisGateway: the interface between a queue and the broker that stores its messages."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from penstock.errors import ConfigurationTypeError, GatewayContractError, text_of
from penstock.events import EventSink
from penstock.keys import QueueKeys
from penstock.policy import Reason
from penstock.queue.administration import Administration
from penstock.queue.model import ClaimedMessage, MessageData
from penstock.runtime.aio import Flag, TaskGroup

if TYPE_CHECKING:
    from penstock.queue.queue_delivery import QueueDelivery

logger = logging.getLogger("penstock.queue")
StopRenewal: TypeAlias = Callable[[], Awaitable[None]]
Delivery: TypeAlias = "QueueDelivery | GatewayDelivery"  # a message being processed; both have the same methods


class AbstractRedisGateway(ABC):
    """A broker for a queue. Subclass it to store messages elsewhere; GatewayContract in penstock.testing tests it.

    A gateway with leases sets their duration in `message_visibility_timeout_seconds`, and returns ClaimedMessage with a
    token; without one, the queue raises an error. `queue`, `from_queue` and `to_queue` are names of `queue.key`.
    """

    message_visibility_timeout_seconds: float | None = None
    max_delivery_count: int | None = None
    dead_letter_queue: str | None = None
    is_redis_cluster: bool = False
    is_at_most_once: bool = False  # a message is delivered once, and its handler runs once

    @abstractmethod
    async def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        """Add a message unless one was published under the key within the window; return whether it was added."""

    @abstractmethod
    async def add_message(self, queue: str, message: str) -> None:
        """Add a message."""

    @abstractmethod
    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | MessageData | None:
        """Take the next message, waiting some seconds for one; return None if there was none.

        The message stays in `to_queue` until it is settled. Gateways with leases must return a ClaimedMessage.
        """

    @abstractmethod
    async def move_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None
    ) -> bool:
        """Move a message that was taken to a log; return False, and do nothing, if another consumer has it now."""

    @abstractmethod
    async def remove_message(self, queue: str, message: MessageData, *, lease_token: str | None = None) -> bool:
        """Remove a message that was taken; return False, and do nothing, if another consumer has it now."""

    @abstractmethod
    async def renew_message_lease(self, queue: str, message: MessageData, lease_token: str) -> bool:
        """Renew the lease; return False, and do nothing, if another consumer has the message now."""

    @abstractmethod
    async def trim_queue(self, queue: str, max_length: int) -> None:
        """Keep only the newest records of a log."""

    # --- optional methods ---------------------------------------------------------------------------

    async def log_message(
        self,
        from_queue: str,
        to_queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        max_length: int | None = None,
        error: BaseException | None = None,  # noqa: ARG002  for brokers whose logs have room for it
    ) -> bool:
        """Move a message that was taken to a log, and keep only the newest records of the log."""
        is_moved = await self.move_message(from_queue, to_queue, message, lease_token=lease_token)
        if is_moved and max_length is not None:
            await self.trim_queue(to_queue, max_length)
        return is_moved

    async def discard_message(
        self,
        queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        error: BaseException | None = None,  # noqa: ARG002  for brokers that keep account of failures
    ) -> bool:
        """Remove a message whose handler failed and which is not retried.

        A broker that keeps deduplication keys should free its key, else its producer's next try is a duplicate.
        """
        return await self.remove_message(queue, message, lease_token=lease_token)

    async def note_failure(  # noqa: B027  a broker need not keep such a log
        self, to_queue: str, claimed: ClaimedMessage, error: BaseException, max_length: int | None
    ) -> None:
        """Record a failed attempt in a log, regardless of what happens to the message."""

    async def return_message(
        self,
        from_queue: str,
        to_queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        delay_seconds: float = 0.0,  # noqa: ARG002  for brokers that know delays
        counts: bool = True,  # noqa: ARG002  for brokers that count attempts
    ) -> bool:
        """Return a message that was taken to the queue, after the delay if the broker supports delays.

        With `counts`, this counts as an attempt; otherwise the message was not at fault.
        """
        return await self.move_message(from_queue, to_queue, message, lease_token=lease_token)

    async def dead_letter_message(
        self,
        from_queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        reason: Reason = Reason.MAX_DELIVERIES,  # noqa: ARG002  for brokers whose dead letters have room for it
        error: BaseException | None = None,  # noqa: ARG002  likewise
    ) -> bool:
        """Move a message that was taken to the dead letters; without a dead-letter queue, remove it."""
        if self.dead_letter_queue is None:
            return await self.remove_message(from_queue, message, lease_token=lease_token)
        return await self.move_message(from_queue, self.dead_letter_queue, message, lease_token=lease_token)

    async def keep_lease(
        self,
        queue: str,
        claimed: ClaimedMessage,
        interval_seconds: float,
        max_seconds: float,
        on_lost: Callable[[str], None],
    ) -> StopRenewal:
        """Renew a lease every interval and report when that fails; return a function that stops it."""
        # Not in the thread that renews leases, because a gateway's methods belong to the caller's event loop.
        until_s, stopping, activities = time.monotonic() + max_seconds, Flag(), TaskGroup(lambda: None)

        async def keep() -> None:
            reason = ""
            while not reason:
                if await stopping.wait(interval_seconds):
                    return
                reason = await self._why_not_renewed(queue, claimed, until_s)
            if not stopping.is_set():
                on_lost(reason)

        async def stop() -> None:
            stopping.set()
            if not await activities.join(1.0):
                await activities.cancel()

        activities.start(keep)
        return stop

    async def _why_not_renewed(self, queue: str, claimed: ClaimedMessage, until_s: float) -> str:
        # Renew the lease; return the reason if that failed, else ''.
        if time.monotonic() >= until_s:
            return "the handler exceeded max_processing_seconds; its lease is no longer renewed"
        try:
            if await self.renew_message_lease(queue, claimed.stored_message, claimed.lease_token):
                return ""
        except Exception as error:
            logger.warning("cannot renew the lease of a message of queue %s: %s", queue, text_of(error))
            return f"renewing the lease failed: {text_of(error)}"
        return "lost the lease to another consumer"

    async def close(self) -> None:  # noqa: B027  most brokers have nothing to give up
        """Close what was opened."""

    # --- called by the queue ------------------------------------------------------------------------

    async def take(self, key: QueueKeys, is_stopped: Callable[[], bool]) -> Delivery | None:  # noqa: ARG002
        """Take the next message of a queue; return None if there was none."""
        found = await self.wait_for_message_and_move(key.pending, key.processing)
        return None if found is None else GatewayDelivery(self, key, found)

    def is_interrupted(self) -> bool:
        """Return whether to stop taking messages."""
        return False

    def listen(self, queue: str, sink: EventSink) -> None:  # noqa: B027  the queue tells of most events itself
        """Send the events of a queue's messages in the broker to a sink."""

    async def hand_back(self) -> bool:
        """Return messages that no consumer holds to the queue; return False if some could not be returned."""
        return True

    def administration(self, key: QueueKeys) -> Administration:  # noqa: ARG002
        """Return the administration of a queue."""
        raise ConfigurationTypeError(
            "stats(), peek(), purge() and redrive_dead_letters() work on Redis Streams only; use the tools of "
            f"the broker behind {type(self).__name__}"
        )


class GatewayDelivery:
    """A message that was taken through the contract of AbstractRedisGateway, and is settled through it.

    Raises GatewayContractError where the gateway breaks it; nothing is settled then.
    """

    def __init__(self, gateway: AbstractRedisGateway, key: QueueKeys, found: ClaimedMessage | MessageData) -> None:
        self._gateway, self._key, self._name = gateway, key, type(gateway).__name__
        self._claimed = found if isinstance(found, ClaimedMessage) else None
        self.payload = found.stored_message if isinstance(found, ClaimedMessage) else found
        self.id = self._claimed.message_id if self._claimed else None
        self.token = self._claimed.lease_token if self._claimed else None
        self.deliveries = self._claimed.delivery_count if self._claimed else 0
        self.attempts = self._claimed.attempts if self._claimed else 0
        if gateway.message_visibility_timeout_seconds is not None:
            self._check_token()
        if not isinstance(self.payload, str | bytes):
            raise GatewayContractError(
                f"{self._name} returned a {type(self.payload).__name__}; it must return ClaimedMessage, str or bytes"
            )

    def _check_token(self) -> None:
        if self._claimed is None:
            raise GatewayContractError(
                f"{self._name} has message_visibility_timeout_seconds but returned a plain "
                f"{type(self.payload).__name__}; it must return ClaimedMessage(stored_message, lease_token)"
            )
        if not self.token:
            raise GatewayContractError(
                f"{self._name} has leases but returned a message without a lease_token; without one, a consumer "
                "could settle a message that another consumer holds"
            )
        if not isinstance(self.token, str):
            raise GatewayContractError(f"lease_token must be a str, not {type(self.token).__name__}")

    def _checked(self, answer: object) -> bool:
        if not isinstance(answer, bool):
            raise GatewayContractError(
                f"{self._name} must return True or False when a message is settled, not {answer!r}"
            )
        return answer

    async def finish(self, log: str | None, max_length: int | None) -> bool:
        """Remove the message, or move it to the log."""
        gateway, processing = self._gateway, self._key.processing
        if log is None:
            return self._checked(await gateway.remove_message(processing, self.payload, lease_token=self.token))
        return self._checked(
            await gateway.log_message(processing, log, self.payload, lease_token=self.token, max_length=max_length)
        )

    async def finish_quickly(self, is_stopped: Callable[[], bool]) -> tuple[bool, BaseException | None]:  # noqa: ARG002
        """Return False: there is no quicker way."""
        return False, None

    async def discard(self, error: BaseException, log: str | None, max_length: int | None) -> bool:
        """Discard the message, or move it to the log."""
        gateway, processing, token = self._gateway, self._key.processing, self.token
        if log is None:
            answer = await gateway.discard_message(processing, self.payload, lease_token=token, error=error)
        else:
            answer = await gateway.log_message(
                processing, log, self.payload, lease_token=token, max_length=max_length, error=error
            )
        return self._checked(answer)

    async def note_failure(self, error: BaseException, log: str, max_length: int | None) -> None:
        """Record the failure with the gateway."""
        if self._claimed is not None:
            await self._gateway.note_failure(log, self._claimed, error, max_length)

    async def retry(self, delay_s: float, *, counts: bool) -> bool:
        """Return the message to the queue."""
        key, token = self._key, self.token
        return self._checked(
            await self._gateway.return_message(
                key.processing, key.pending, self.payload, lease_token=token, delay_seconds=delay_s, counts=counts
            )
        )

    async def dead_letter(self, reason: Reason | None, error: BaseException) -> bool:
        """Move the message to the dead letters, with the gateway's default reason if none is given."""
        why = {} if reason is None else {"reason": reason}
        return self._checked(
            await self._gateway.dead_letter_message(
                self._key.processing, self.payload, lease_token=self.token, error=error, **why
            )
        )

    async def keep_lease(self, interval_s: float, max_s: float, on_lost: Callable[[str], None]) -> StopRenewal:
        """Renew the lease through the gateway."""
        assert self._claimed is not None  # heartbeats need leases, and leases a ClaimedMessage
        return await self._gateway.keep_lease(self._key.processing, self._claimed, interval_s, max_s, on_lost)
