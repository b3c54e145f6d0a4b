"""One page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list. Pass `cursor` to get the next one; '' = this was the last.

    A page may hold fewer items than were asked for, or none, and have a cursor all the same: the work for one page is
    bounded, however few of the items match.
    """

    items: tuple[Item, ...]
    cursor: str = ""
