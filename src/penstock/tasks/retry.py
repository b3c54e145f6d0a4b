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
        if self.max_retries is not None:
            check_number("max_retries", self.max_retries, may_be_zero=True)
        if not 0 <= self.initial_s <= self.max_s or not 0 <= self.jitter < 1:
            raise ConfigurationError("initial_s must be between 0 and max_s, and jitter between 0 and 1")

    def after_failure(self, error: BaseException, runs: int, max_retry: int, chance: random.Random) -> Verdict:
        """Decide about a task whose run failed; `runs` includes that run, `max_retry` is what the queue allows."""
        limits = Limits(None, 1 + (max_retry if self.max_retries is None else self.max_retries))
        backoff = Backoff(round(self.initial_s * 1000), round(self.max_s * 1000), self.jitter)
        is_pointless = isinstance(error, self.never) or (self.only is not None and not isinstance(error, self.only))
        return after_failure(error, runs, runs, limits, backoff, chance, is_pointless=is_pointless)
