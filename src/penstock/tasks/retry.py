"""Retry: how often, after which delay and after which errors tasks of a kind are tried again: pure decisions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.number_checks import check_number
from penstock.policy import Backoff, Limits, Verdict, after_failure


@dataclass(frozen=True, slots=True)
class Retry:
    """What a failed run of a task leads to.

    `max_attempts` counts all runs, the first one included (None = what the queue allows: `max_retry` + 1). `never` are
    errors after which trying again is pointless; with `only`, trying again is pointless after all others.
    """

    max_attempts: int | None = None
    initial_delay_ms: int = 1_000
    max_delay_ms: int = 300_000
    jitter: float = 0.1
    never: tuple[type[BaseException], ...] = ()
    only: tuple[type[BaseException], ...] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for numbers that make no sense."""
        if self.max_attempts is not None:
            check_number("max_attempts", self.max_attempts)
        if not 0 <= self.initial_delay_ms <= self.max_delay_ms or not 0 <= self.jitter < 1:
            raise ConfigurationError("initial_delay_ms must be between 0 and max_delay_ms, and jitter between 0 and 1")

    def after_failure(self, error: BaseException, runs: int, max_retry: int, chance: random.Random) -> Verdict:
        """Decide about a task whose run failed; `runs` includes that run, `max_retry` is what the queue allows."""
        limits = Limits(None, max_retry + 1 if self.max_attempts is None else self.max_attempts)
        backoff = Backoff(self.initial_delay_ms, self.max_delay_ms, self.jitter)
        is_pointless = isinstance(error, self.never) or (self.only is not None and not isinstance(error, self.only))
        return after_failure(error, runs, runs, limits, backoff, chance, is_pointless=is_pointless)
