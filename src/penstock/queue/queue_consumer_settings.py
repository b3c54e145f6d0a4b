"""How messages of a queue are handed out."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.policy import Limits
from penstock.redis.retry import RetryBudget
from penstock.serializers import PayloadLimits


@dataclass(frozen=True, slots=True)
class QueueConsumerSettings:
    """How messages of a queue are handed out."""

    lease_s: float | None  # None = at most once: nobody takes over what a dead process held
    limits: Limits
    dead_letters: str
    is_text: bool
    retry: RetryBudget
    can_be_interrupted: bool
    payload: PayloadLimits
