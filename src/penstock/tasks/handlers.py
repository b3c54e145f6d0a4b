"""Handlers: the functions that do tasks, registered by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.task import Priority, PriorityName, Task
from penstock.tasks.limits import Limits, Rate
from penstock.tasks.retry import Retry
from penstock.tasks.schedule import CronRule, Schedule

_Function = TypeVar("_Function", bound=Callable[[Task], Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """The function for one kind of task, and how it is to be run."""

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
        self._by_kind: dict[str, Handler] = {}
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
        """Have a task of a kind added at every time of a cron rule, by whichever worker comes first; return it."""
        name = name or re.sub(r"[^0-9A-Za-z_-]", "-", kind)
        if name in self.schedules:
            raise ConfigurationError(f"two schedules are called {name!r}: give one of them another name")
        made = Schedule(name, CronRule.parse(cron, zone), kind, payload or {}, priority=priority)
        self.schedules[name] = made
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
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigurationError(f"timeout_s={timeout_s!r} must be a positive number of seconds")
        limits = Limits(max_concurrency, max_concurrency_per_key, _rate(rate), _rate(rate_per_key))

        def register(function: _Function) -> _Function:
            if not callable(function):
                raise ConfigurationError(f"the handler of {kind!r} must be a function, not {function!r}")
            if kind in self._by_kind:
                raise ConfigurationError(f"two handlers are registered for {kind!r}: give one of them another kind")
            self._by_kind[kind] = Handler(kind, function, frozenset(requires), timeout_s, retry or Retry(), limits)
            return function

        return register

    def __getitem__(self, kind: str) -> Handler:
        """Return the handler of a kind."""
        return self._by_kind[kind]

    def __contains__(self, kind: object) -> bool:
        """Tell whether there is a handler of the kind."""
        return kind in self._by_kind

    def __iter__(self) -> Iterator[Handler]:
        """Iterate over the handlers."""
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_kind)

    def include(self, other: Handlers) -> None:
        """Take in the handlers of another collection."""
        for handler in other:
            if handler.kind in self._by_kind:
                raise ConfigurationError(f"two handlers are registered for {handler.kind!r}")
            self._by_kind[handler.kind] = handler
        for name, schedule in other.schedules.items():
            if self.schedules.setdefault(name, schedule) is not schedule:
                raise ConfigurationError(f"two schedules are called {name!r}")

    def for_worker(self, provides: Collection[str]) -> frozenset[str]:
        """Return the kinds that a worker with these capabilities can do."""
        return frozenset(handler.kind for handler in self if handler.requires <= frozenset(provides))


def _rate(value: Rate | str | None) -> Rate | None:
    return Rate.parse(value) if isinstance(value, str) else value
