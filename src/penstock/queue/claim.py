"""Claim: one message in the hands of this process."""

from __future__ import annotations

import msgspec

from penstock.queue.consumer_slot import ConsumerSlot
from penstock.queue.payload import MessageData


class Claim(msgspec.Struct, eq=False):
    """A message and the slot that holds it, from the moment it was handed out until it is settled."""

    slot: ConsumerSlot
    entry_id: str
    fields: list[bytes]
    payload: MessageData
    deliveries: int
    attempts: int
    is_again: bool  # handed out before, to whomever
    expires_at: float  # of time.monotonic(), unless it is renewed

    @property
    def token(self) -> str:
        """Who holds the message, and for the how-manieth time it was handed out: no two claims are alike."""
        return f"{self.deliveries}:{self.entry_id}:{self.slot.consumer}"
