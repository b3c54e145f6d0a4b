"""Shelf: where results are read from. It is pickled into tasks, so it holds settings, and no connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.spark.results.wanted import Wanted
from penstock.task import Result


@dataclass(frozen=True)
class Sizes:
    """Into how many parts the results are shared out at least, and how many one part should have at most."""

    min_parts: int = 1
    max_rows: int = 50_000


class Shelf(Protocol):
    """What each back-end does."""

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[Any]:
        """Return parts, each for one task: every wanted result is in exactly one of them.

        Raises: ConfigurationError or StreamMissing where there is nothing that holds results.
        """

    def read(self, part: Any, wanted: Wanted) -> Iterator[Sequence[Result]]:
        """Yield the results of a part, some at a time; others than the wanted ones may be among them."""
