"""The result back-end of one process: made once, asked for many ids at a time, borne with while it is away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from penstock.errors import BackendUnavailable
from penstock.redis.retry import pause_s
from penstock.runtime.threads import pause, side_by_side
from penstock.settings import ResultBackendSettings
from penstock.sync.providers import make_result_backend
from penstock.task import Result

T = TypeVar("T")
_AT_ONCE = 16
_TRIES = 8
_chance = random.Random()


class Store:
    """Results by id."""

    def __init__(self, settings: ResultBackendSettings) -> None:
        self._backend: Any = make_result_backend(settings)

    def find(self, ids: Iterable[str]) -> dict[str, Result]:
        """Return the results that there are."""
        wanted = list(dict.fromkeys(ids))
        found = _patiently(lambda: side_by_side(_AT_ONCE, self._backend.get, wanted))
        return {task_id: result for task_id, result in zip(wanted, found, strict=True) if result is not None}

    def save(self, results: Sequence[Result]) -> dict[str, Result]:
        """Save results; return those that an earlier, different one was in the way of, with that one."""
        if not results:
            return {}
        saved = _patiently(lambda: self._backend.save_many(results))
        return self.find(result.task_id for result, is_ours in zip(results, saved, strict=True) if not is_ours)

    def close(self) -> None:
        """Let go of connections."""
        self._backend.close()


def _patiently(call: Callable[[], T]) -> T:
    # Every call may be repeated: the first result of an id stays, and saving it again is no second one.
    for attempt in range(1, _TRIES):
        try:
            return call()
        except BackendUnavailable:
            pause(pause_s(attempt, _chance))
    return call()
