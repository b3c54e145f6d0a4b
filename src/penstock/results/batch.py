"""Results that are saved together, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.errors import ConfigurationError
from penstock.task import Result, encode


class Entry(NamedTuple):
    """A result and its bytes, by which results are compared."""

    result: Result
    raw: bytes


class Batch:
    """Results in their order. Of several with one task id only the first is offered to the store."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._all = [Entry(result, encode(_checked(result))) for result in results]
        firsts: dict[str, Entry] = {}
        for entry in self._all:
            firsts.setdefault(entry.result.task_id, entry)
        # In the order of their ids: two writers with the same ids wait for each other, never in a circle.
        self.entries = [firsts[task_id] for task_id in sorted(firsts)]

    def outcomes(self, stored: Mapping[str, bytes]) -> list[bool]:
        """Return for each result whether it is what the store holds now, given the stored bytes by task id."""
        return [stored[entry.result.task_id] == entry.raw for entry in self._all]


def _checked(result: Result) -> Result:
    if not isinstance(result, Result):
        raise ConfigurationError(f"save() takes a Result, not a {type(result).__name__}")
    return result
