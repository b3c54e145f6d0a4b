"""The values that cross the API of a queue, shared by the async and the sync half."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.queue.payload import MessageData

GROUP = "queue"  # of the stream of every queue


class ClaimedMessage(msgspec.Struct, frozen=True):
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


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import brought in, or, of a dry run, what it would bring in.

    `still_leased` are under leases that have not run out, `without_lease` were taken by consumers that use none: both
    are left where they are. So are dead letters and logs until neither is left, for consumers of the old queue need
    their lists.
    """

    pending: int = 0
    processing: int = 0
    still_leased: int = 0
    without_lease: int = 0
    dead_letters: int = 0
    completed: int = 0
    failed: int = 0
    dedup_keys: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left behind."""
        return not self.still_leased and not self.without_lease
