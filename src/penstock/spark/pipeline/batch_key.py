"""What a batch is known by over all its repetitions, its attempts, and the points at which tests make it fail.

Each attempt to write a batch has a folder of its own, so that none touches the files of another. A driver that was
killed may leave tasks behind that write for some moments more, and where no lock is to be had there may be two drivers.
One attempt is taken, whole; the others are deleted when that is settled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import uuid4

from penstock.spark.pipeline.files import Files, joined

_ATTEMPT = "."  # between the name of a batch and that of an attempt
FailPoint: TypeAlias = Callable[[str], None]  # called between the steps of a commit, with the name of the last one


@dataclass(frozen=True)
class BatchKey:
    """The query, which a new checkpoint changes, and the number of the batch, which a repetition keeps."""

    query: str
    number: int

    @property
    def folder(self) -> str:
        """The name for a folder; it sorts as the batches do."""
        return f"{self.query.replace('-', '')[:16]}-{self.number:09d}"


def attempt_of(key: BatchKey) -> str:
    """Return the name of a new attempt."""
    return f"{key.folder}{_ATTEMPT}{uuid4().hex[:8]}"


def tidy(files: Files, folder: str, key: BatchKey) -> None:
    """Delete the attempts that are left of a batch which is in its place."""
    for name in files.names(folder):
        if name.startswith(f"{key.folder}{_ATTEMPT}"):
            files.delete(joined(folder, name))
