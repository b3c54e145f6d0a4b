"""Handlers: the functions that do tasks, registered by kind, with the retries and the limits of each kind."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.number_checks import check_number, check_seconds
from penstock.policy import AttemptLimits, Backoff, Verdict, after_failure
from penstock.task import Priority, PriorityName, Task
from penstock.tasks.schedule import CronRule, Schedule
from penstock.type_checks import check_type

_Function = TypeVar("_Function", bound=Callable[[Task], Any])
_Limit = TypeVar("_Limit")
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*(s|m|h|d|second|minute|hour|day)\s*")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Retry:
    """What happens after a failed run of a task.

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

    def after_failure(self, error: BaseException, runs: int, max_retry: int, rng: random.Random) -> Verdict:
        """Decide about a task whose run failed; `runs` includes that run, `max_retry` is the queue's limit."""
        limits = AttemptLimits(None, max_retry + 1 if self.max_attempts is None else self.max_attempts)
        backoff = Backoff(self.initial_delay_ms, self.max_delay_ms, self.jitter)
        is_pointless = isinstance(error, self.never) or (self.only is not None and not isinstance(error, self.only))
        return after_failure(error, runs, runs, limits, backoff, rng, is_pointless=is_pointless)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit of `count` starts in `per_s` seconds; after a pause, up to `count` start at once."""

    count: int
    per_s: float

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what is no rate."""
        if self.count < 1 or not self.per_s > 0:
            raise ConfigurationError(
                f"Rate({self.count}, {self.per_s}) must have a positive count and a positive number of seconds"
            )

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse a rate such as '100/m', '5/s' or '10/30s'."""
        match = _RATE.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"rate={text!r} must be written as '100/m', '5/s' or '10/30s'")
        return cls(int(match[1]), float(match[2] or 1) * _UNITS[match[3][0]])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind, across all workers; None = no limit."""

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
        """Return whether there is any limit."""
        return any((self.max_concurrency, self.max_concurrency_per_key, self.rate, self.rate_per_key))

    def concurrency_of(self, task: Task) -> list[tuple[str, int]]:
        """Return the concurrency limits that apply to a task: name and number."""
        return _scopes(task, self.max_concurrency, self.max_concurrency_per_key)

    def rates_of(self, task: Task) -> list[tuple[str, Rate]]:
        """Return the rate limits that apply to a task: name and rate."""
        return _scopes(task, self.rate, self.rate_per_key)


def _scopes(task: Task, of_kind: _Limit | None, of_key: _Limit | None) -> list[tuple[str, _Limit]]:
    kind, found = quote(task.kind, safe=""), list[tuple[str, _Limit]]()
    if of_kind is not None:
        found.append((kind, of_kind))
    if of_key is not None and task.key is not None:
        found.append((f"{kind}:{quote(task.key, safe='')}", of_key))
    return found


@dataclass(frozen=True, slots=True)
class TaskHandler:
    """The function for one kind of task, and how to run it."""

    kind: str
    function: Callable[[Task], Any]
    requires: frozenset[str] = frozenset()
    timeout_s: float | None = None
    retry: Retry = field(default_factory=Retry)
    limits: Limits = field(default_factory=Limits)


class Handlers:
    """A collection of handlers, filled by a decorator.

        handlers = Handlers()

        @handlers.task("render", timeout_s=30)
        async def render(task):
            return {"pages": 3}

    What the function returns is the data of the result; a `Result` is taken as it is. It may raise `Snooze`,
    `RetryLater`, `FatalError` or `Skip`; any other error is a failed run, tried again as `retry` says.
    """

    def __init__(self) -> None:
        self._by_kind: dict[str, TaskHandler] = {}
        self.schedules: dict[str, Schedule] = {}

    def schedule(
        self,
        cron: str,
        kind: str,
        *,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        zone: str = "UTC",
        priority: Priority | PriorityName = Priority.NORMAL,
    ) -> Schedule:
        """Schedule a task at every time of a cron rule, added by whichever worker is first; return the schedule."""
        name = name or re.sub(r"[^0-9A-Za-z_-]", "-", kind)
        made = Schedule(name, CronRule.parse(cron, zone), kind, payload or {}, priority=priority)
        self._add_schedule(made)
        return made

    def task(
        self,
        kind: str,
        *,
        requires: Collection[str] = (),
        timeout_s: float | None = None,
        retry: Retry | None = None,
        max_concurrency: int | None = None,
        max_concurrency_per_key: int | None = None,
        rate: Rate | str | None = None,
        rate_per_key: Rate | str | None = None,
    ) -> Callable[[_Function], _Function]:
        """Register the decorated function, async or plain, for tasks of a kind.

        `requires` are the capabilities that the function itself needs: a worker without them leaves the kind to others.
        """
        check_name("kind", kind)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        if retry is not None:
            check_type("retry", retry, Retry, "Retry(max_attempts=6)")
        limits = Limits(
            max_concurrency, max_concurrency_per_key, _rate("rate", rate), _rate("rate_per_key", rate_per_key)
        )

        def register(function: _Function) -> _Function:
            if not callable(function):
                raise ConfigurationError(f"the handler for {kind!r} must be a function, not {function!r}")
            self._add(TaskHandler(kind, function, frozenset(requires), timeout_s, retry or Retry(), limits))
            return function

        return register

    def __getitem__(self, kind: str) -> TaskHandler:
        """Return the handler of a kind."""
        return self._by_kind[kind]

    def __contains__(self, kind: object) -> bool:
        """Return whether there is a handler for the kind."""
        return kind in self._by_kind

    def __iter__(self) -> Iterator[TaskHandler]:
        """Iterate over the handlers."""
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_kind)

    def include(self, other: Handlers) -> None:
        """Add the handlers of another collection."""
        for handler in other:
            self._add(handler)
        for schedule in other.schedules.values():
            self._add_schedule(schedule)

    def _add(self, handler: TaskHandler) -> None:
        if handler.kind in self._by_kind:
            raise ConfigurationError(
                f"two handlers are registered for {handler.kind!r}: use a different kind for one of them"
            )
        self._by_kind[handler.kind] = handler

    def _add_schedule(self, schedule: Schedule) -> None:
        if self.schedules.setdefault(schedule.name, schedule) is not schedule:
            raise ConfigurationError(f"two schedules are named {schedule.name!r}: rename one of them")

    def for_worker(self, provides: Collection[str]) -> frozenset[str]:
        """Return the kinds that a worker with these capabilities can handle."""
        return frozenset(handler.kind for handler in self if handler.requires <= frozenset(provides))


def _rate(name: str, value: Rate | str | None) -> Rate | None:
    rate = Rate.parse(value) if isinstance(value, str) else value
    if rate is not None:
        check_type(name, rate, Rate, "Rate(100, per_s=60), or the text '100/m'")
    return rate
