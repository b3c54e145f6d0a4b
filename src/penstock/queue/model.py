"""The values that cross the API of a queue, shared by the async and the sync half."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.queue.payload import MessageData


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message that was handed out under a lease; whoever settles or renews it shows the token."""

    stored_message: MessageData
    lease_token: str
    message_id: str | None = None
    delivery_count: int = 1
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages of a queue are in which state; None for a log that is not kept.

    `pending` were never handed out, `processing` are with a consumer, `retrying` wait for their next attempt.
    """

    pending: int
    processing: int
    retrying: int
    completed: int | None
    failed: int | None
    dead_letter: int | None
