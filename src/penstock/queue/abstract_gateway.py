"""AbstractRedisGateway: what a queue asks of the broker that keeps its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from penstock.policy import Reason
from penstock.queue.gateway_renewal import GatewayRenewal
from penstock.queue.model import ClaimedMessage
from penstock.queue.payload import MessageData

StopRenewal: TypeAlias = Callable[[], Awaitable[None]]


class AbstractRedisGateway(ABC):
    """A broker for a queue. Derive from it to keep messages elsewhere; GatewayContract in penstock.testing checks it.

    A gateway with leases says how long they last in `message_visibility_timeout_seconds` and returns ClaimedMessage
    with a token; the queue refuses to go on without one. `queue`, `from_queue` and `to_queue` are names of `queue.key`.
    """

    message_visibility_timeout_seconds: float | None = None
    max_delivery_count: int | None = None
    dead_letter_queue: str | None = None
    is_redis_cluster: bool = False
    is_at_most_once: bool = False  # a message is handed out once, and its handler runs once

    @abstractmethod
    async def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        """Add a message unless one was published under the key within the window; return whether it was added."""

    @abstractmethod
    async def add_message(self, queue: str, message: str) -> None:
        """Add a message."""

    @abstractmethod
    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | MessageData | None:
        """Take the next message, waiting for one some seconds; None = there was none.

        What is taken stays in `to_queue` until it is settled. A ClaimedMessage is required of gateways with leases.
        """

    @abstractmethod
    async def move_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None
    ) -> bool:
        """Move a message that was taken to a log; False, and nothing is done, if it belongs to somebody else by now."""

    @abstractmethod
    async def remove_message(self, queue: str, message: MessageData, *, lease_token: str | None = None) -> bool:
        """Remove a message that was taken; False, and nothing is done, if it belongs to somebody else by now."""

    @abstractmethod
    async def renew_message_lease(self, queue: str, message: MessageData, lease_token: str) -> bool:
        """Begin the lease anew; False, and nothing is done, if the message belongs to somebody else by now."""

    @abstractmethod
    async def trim_queue(self, queue: str, max_length: int) -> None:
        """Keep only the newest records of a log."""

    # --- what a gateway may do better than by the means above ---------------------------------------

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
        """Move a message that was taken to a log and keep only the newest records of that."""
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
        """Remove a message that was taken, whose handler failed, and which is not tried again.

        A broker that keeps deduplication keys should free its key, else its producer's next try is a duplicate.
        """
        return await self.remove_message(queue, message, lease_token=lease_token)

    async def note_failure(  # noqa: B027  a broker need not keep such a log
        self, to_queue: str, claimed: ClaimedMessage, error: BaseException, max_length: int | None
    ) -> None:
        """Record in a log that an attempt failed, whatever becomes of the message."""

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
        """Have a message that was taken handed out again, after the delay if the broker knows delays.

        `counts` tells that this was an attempt; else it was not the message's fault.
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
        """Move a message that was taken to the dead letters; without such a queue it is removed."""
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
        """Renew a lease every interval, and say when that fails; the function that is returned ends it."""
        renewal = GatewayRenewal(self.renew_message_lease, queue, claimed, interval_seconds, max_seconds, on_lost)
        return renewal.start()

    async def close(self) -> None:  # noqa: B027  most brokers have nothing to give up
        """Give up what was opened."""
