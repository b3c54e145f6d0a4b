"""Decides what happens to a message; pure functions, whose decisions are carried out elsewhere."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from penstock.errors import FatalError, NotAuthentic, RetryLater, Snooze, delay_asked_s

_MAX_FAILING = 10_000  # of which the failures are counted


class Reason(StrEnum):
    """Why a message was dead-lettered."""

    DECODE_ERROR = "decode_error"
    NOT_AUTHENTIC = "not_authentic"
    INVALID = "invalid"
    MAX_DELIVERIES = "max_deliveries"
    FATAL = "fatal"
    EXPIRED = "expired"
    MISSING = "missing"
    OPERATOR = "operator"  # an operator moved it
    REFUSED = "refused"  # the server rejected the complete record; this one has only the fields that Penstock knows


def unreadable(error: BaseException | None) -> Reason:
    """Return the reason for dead-lettering a message that could not be read."""
    return Reason.NOT_AUTHENTIC if isinstance(error, NotAuthentic) else Reason.DECODE_ERROR


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Deliver the message again after the delay; a snooze does not count as an attempt."""

    after_ms: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Move the message to the dead letters."""

    reason: Reason


Verdict: TypeAlias = RetryAfter | GiveUp


def doubling(first: float, failures: int, longest: float) -> float:
    """Return the delay after a number of failures in a row: the first one, doubled with each further failure."""
    delay: float = min(first * 2 ** min(failures - 1, 32), longest)
    return delay


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter; none at all if the first one is 0."""

    initial_ms: int
    max_ms: int
    jitter: float

    def delay_ms(self, attempt: int, rng: random.Random) -> int:
        """Return the delay after the given failed attempt (1 = the first)."""
        plain = doubling(self.initial_ms, attempt, self.max_ms)
        return max(1, round(plain * (1 + self.jitter * rng.uniform(-1, 1)))) if plain else 0


class DelaysById:
    """Delays of things that keep failing, by their ids: a second after the first failure, in the end a minute."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    def next_ms(self, failed_id: str) -> tuple[int, bool]:
        """Count a failure; return the delay after it, and whether it is the first one."""
        if len(self._failures) >= _MAX_FAILING:
            self._failures.clear()  # others may have settled them since
        failures = self._failures[failed_id] = self._failures.get(failed_id, 0) + 1
        return round(doubling(1_000, failures, 60_000)), failures == 1

    def forget(self, settled_id: str) -> None:
        """Forget the failures of an id."""
        self._failures.pop(settled_id, None)

    def __len__(self) -> int:
        return len(self._failures)


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How often a message may be delivered and attempted; None = no limit."""

    max_deliveries: int | None
    max_attempts: int | None

    def is_exhausted(self, deliveries: int, attempts: int) -> bool:
        """Return whether a message with these counts, which do not include a coming run, must not run again."""
        return (self.max_deliveries is not None and deliveries >= self.max_deliveries) or (
            self.max_attempts is not None and attempts >= self.max_attempts
        )

    def is_last_chance(self, deliveries: int, attempts: int) -> bool:
        """Return whether the next run is the last one permitted.

        Such a message runs alone, so that it affects no other message if it kills the process.
        """
        return self.is_exhausted(deliveries + 1, attempts + 1)


def after_failure(
    error: BaseException | None, deliveries: int, attempts: int, limits: AttemptLimits, backoff: Backoff,
    rng: random.Random, *, is_pointless: bool = False,
) -> Verdict:  # fmt: skip
    """Decide about a message whose handler failed; `deliveries` and `attempts` include the failed run.

    `error` is None when a batch handler left the id out of its reply; `is_pointless` that another run would fail too.
    """
    asked_s = delay_asked_s(error) if isinstance(error, Snooze | RetryLater) else None
    if isinstance(error, Snooze) and asked_s is not None:
        return RetryAfter(round(asked_s * 1000), counts=False)
    if is_pointless or isinstance(error, FatalError):
        return GiveUp(Reason.FATAL)
    if limits.is_exhausted(deliveries, attempts):
        return GiveUp(Reason.MAX_DELIVERIES)
    if asked_s is not None:
        return RetryAfter(round(asked_s * 1000))
    return RetryAfter(backoff.delay_ms(attempts, rng))
