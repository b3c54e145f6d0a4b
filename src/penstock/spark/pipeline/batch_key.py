"""What a batch is known by, over all its repetitions; and the marks at which tests make it fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Mark: TypeAlias = Callable[[str], None]  # called between the steps of a commit, with the name of the last one


@dataclass(frozen=True)
class BatchKey:
    """The query, which a new checkpoint changes, and the number of the batch, which a repetition keeps."""

    query: str
    number: int

    @property
    def folder(self) -> str:
        """The name for a folder; it sorts as the batches do."""
        return f"{self.query.replace('-', '')[:16]}-{self.number:09d}"
