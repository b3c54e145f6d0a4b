"""Attempts to write a batch: each has a folder of its own, so that none touches the files of another.

A driver that was killed may leave tasks behind that write for some moments more, and where no lock is to be had there
may be two drivers. One attempt is taken, whole; the others are deleted when that is settled.
"""

from __future__ import annotations

from uuid import uuid4

from penstock.spark.pipeline.batch_key import BatchKey
from penstock.spark.pipeline.files import Files, joined

_MARK = "."


def attempt_of(key: BatchKey) -> str:
    """Return the name of a new attempt."""
    return f"{key.folder}{_MARK}{uuid4().hex[:8]}"


def tidy(files: Files, folder: str, key: BatchKey) -> None:
    """Delete the attempts that are left of a batch which is in its place."""
    for name in files.names(folder):
        if name.startswith(f"{key.folder}{_MARK}"):
            files.delete(joined(folder, name))
