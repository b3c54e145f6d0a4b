"""How many tasks of a kind, or of a key within it, may run at once, and how often they may begin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from penstock.errors import ConfigurationError
from penstock.number_checks import check_number
from penstock.task import Task

_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*(s|m|h|d|second|minute|hour|day)\s*")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Rate:
    """So many beginnings in so many seconds; after a pause up to `count` begin at once."""

    count: int
    per_s: float

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what is no rate."""
        if self.count < 1 or not self.per_s > 0:
            raise ConfigurationError(f"Rate({self.count}, {self.per_s}) must be a positive number in positive seconds")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate as people write it: '100/m', '5/s', '10/30s'."""
        match = _RATE.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"rate={text!r} must be written as '100/m', '5/s' or '10/30s'")
        return cls(int(match[1]), float(match[2] or 1) * _UNITS[match[3][0]])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind, over all workers; None = none."""

    max_concurrency: int | None = None
    max_concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a limit that lets nothing pass."""
        for what, value in (
            ("max_concurrency", self.max_concurrency), ("max_concurrency_per_key", self.max_concurrency_per_key),
        ):  # fmt: skip
            if value is not None:
                check_number(what, value)

    def __bool__(self) -> bool:
        """Tell whether there is any limit."""
        return any((self.max_concurrency, self.max_concurrency_per_key, self.rate, self.rate_per_key))


def concurrency_scopes(task: Task, limits: Limits) -> list[tuple[str, int]]:
    """Return the limits of how many run at once that hold for a task: name and number."""
    kind, scopes = quote(task.kind, safe=""), []
    if limits.max_concurrency is not None:
        scopes.append((kind, limits.max_concurrency))
    if limits.max_concurrency_per_key is not None and task.key is not None:
        scopes.append((f"{kind}:{quote(task.key, safe='')}", limits.max_concurrency_per_key))
    return scopes


def rate_scopes(task: Task, limits: Limits) -> list[tuple[str, Rate]]:
    """Return the rates that hold for a task: name and rate."""
    kind, scopes = quote(task.kind, safe=""), []
    if limits.rate is not None:
        scopes.append((kind, limits.rate))
    if limits.rate_per_key is not None and task.key is not None:
        scopes.append((f"{kind}:{quote(task.key, safe='')}", limits.rate_per_key))
    return scopes
