"""Retry: how often, after which delay and after which errors tasks of a kind are tried again: pure decisions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import ConfigurationError, FatalError, RetryLater, Snooze, delay_asked_s
from penstock.policy import Backoff


@dataclass(frozen=True, slots=True)
class Retry:
    """What a failed run of a task leads to.

    `max_retries` runs follow the first one (None = as many as the queue allows). `never` are errors after which trying
    again is pointless; with `only`, trying again is pointless after all others.
    """

    max_retries: int | None = None
    initial_s: float = 1.0
    max_s: float = 300.0
    jitter: float = 0.1
    never: tuple[type[BaseException], ...] = ()
    only: tuple[type[BaseException], ...] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for numbers that make no sense."""
        if self.max_retries is not None and self.max_retries < 0:
            raise ConfigurationError(f"max_retries={self.max_retries} must be 0 or more")
        if not 0 <= self.initial_s <= self.max_s or not 0 <= self.jitter < 1:
            raise ConfigurationError("initial_s must be between 0 and max_s, and jitter between 0 and 1")

    def delay_s(self, attempts: int, chance: random.Random) -> float:
        """Return the delay before the next run, after so many failed ones."""
        if not self.initial_s:
            return 0.0
        backoff = Backoff(round(self.initial_s * 1000), round(self.max_s * 1000), self.jitter)
        return backoff.delay_ms(attempts, chance) / 1000

    def is_pointless(self, error: BaseException) -> bool:
        """Tell whether another run would fail like this one."""
        if isinstance(error, (FatalError, *self.never)):
            return True
        return self.only is not None and not isinstance(error, self.only)


@dataclass(frozen=True, slots=True)
class Again:
    """Hand the task out again after the delay; a snooze does not count as a run."""

    delay_s: float
    counts: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Move the task to the dead letters."""

    reason: str


Verdict: TypeAlias = Again | GiveUp


def after_failure(error: BaseException, runs: int, retry: Retry, max_retry: int, chance: random.Random) -> Verdict:
    """Decide about a task whose run failed; `runs` includes that run, `max_retry` is what the queue allows."""
    asked_s = delay_asked_s(error) if isinstance(error, Snooze | RetryLater) else None
    if isinstance(error, Snooze) and asked_s is not None:
        return Again(asked_s, counts=False)
    if retry.is_pointless(error):
        return GiveUp("fatal")
    if runs > (max_retry if retry.max_retries is None else retry.max_retries):
        return GiveUp("max_deliveries")
    if asked_s is not None:
        return Again(asked_s)
    return Again(retry.delay_s(runs, chance))
