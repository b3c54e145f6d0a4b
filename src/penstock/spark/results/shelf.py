"""Shelf: where results are read from, and how folders of results are shared out over tasks."""

from __future__ import annotations

import math
import zlib
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
    """What each back-end does. It is pickled into tasks, so it holds settings, and no connection."""

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[Any]:
        """Return parts, each for one task: every wanted result is in exactly one of them.

        Raises: ConfigurationError or StreamMissing where there is nothing that holds results.
        """

    def read(self, part: Any, wanted: Wanted) -> Iterator[Sequence[Result]]:
        """Yield the results of a part, some at a time; others than the wanted ones may be among them."""


@dataclass(frozen=True)
class Share:
    """Some folders, or one part of several of one folder: of its files those whose names fall into the slot."""

    folders: tuple[str, ...]
    slot: int = 0
    slots: int = 1

    def takes(self, name: str) -> bool:
        """Tell whether a file belongs to this share; of the shares of a folder, one says so."""
        return self.slots == 1 or zlib.crc32(name.encode()) % self.slots == self.slot


def shared(folders: Sequence[tuple[str, int]], min_parts: int, max_rows: int) -> list[Share]:
    """Return the shares of folders with so many rows each: each file is in one, and none is much above `max_rows`.

    Pure: how big the folders are is told by the caller, and may be wrong.
    """
    total = sum(rows for _, rows in folders)
    target = max(1, min(max_rows, math.ceil(total / min_parts)))
    shares: list[Share] = []
    small: list[str] = []
    taken = 0
    for name, rows in folders:
        if rows > target:
            slots = math.ceil(rows / target)
            shares += [Share((name,), slot, slots) for slot in range(slots)]
            continue
        if small and taken + rows > target:
            shares.append(Share(tuple(small)))
            small, taken = [], 0
        small.append(name)
        taken += rows
    if small:
        shares.append(Share(tuple(small)))
    return _at_least(shares, min_parts)


def _at_least(shares: list[Share], min_parts: int) -> list[Share]:
    if not shares or len(shares) >= min_parts:
        return shares
    # Sizes were wrong, or there are few folders: each share is cut by names once more.
    times = math.ceil(min_parts / len(shares))
    return [
        Share(share.folders, share.slot + share.slots * turn, share.slots * times)
        for share in shares
        for turn in range(times)
    ]
