"""Puts files in their places without touching any that is there: it may be another run's, and committed.

Files are named after their first and last id, so two runs that archive the same ids, or a run and one that was killed,
want the same name. If the bytes are the same, one file does for both. If they are not, because an entry was deleted in
between, say, the later file gets a longer name; which of the two is part of the archive is decided by the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.spark.archive.durable import place
from penstock.spark.archive.file_writer import checksum
from penstock.spark.archive.layout import inside
from penstock.spark.archive.manifest import FileEntry, State

_SUM_DIGITS = 16


@dataclass
class Placed:
    """The files of one commit in the making."""

    root: Path
    entries: list[FileEntry] = field(default_factory=list)
    _ours: list[str] = field(default_factory=list)
    _leftovers: list[str] = field(default_factory=list)  # had the name, and are no part of the commit

    def put(self, staged: Path, entry: FileEntry) -> None:
        """Put a file in its place, under another name if that is taken."""
        if not self._is_there(staged, entry):
            self._leftovers.append(entry.path)
            entry = replace(entry, path=f"{entry.path.removesuffix('.parquet')}_{entry.sha256[:_SUM_DIGITS]}.parquet")
            if not self._is_there(staged, entry):
                raise FileExistsError(f"{self.root / entry.path} is there, with other content: remove it")
        self.entries.append(entry)

    def _is_there(self, staged: Path, entry: FileEntry) -> bool:
        target = inside(self.root, entry.path)
        try:
            place(staged, target)
        except FileExistsError:
            return target.is_file() and checksum(target) == entry.sha256
        self._ours.append(entry.path)
        return True

    def take_back(self, state: State) -> None:
        """Remove what was put in place for nothing: somebody else has committed."""
        for path in self._ours:
            self._remove(path, state)

    def remove_leftovers(self, state: State) -> None:
        """Remove, after the commit, what had its names: nobody can commit it any more."""
        for path in self._leftovers:
            self._remove(path, state)

    def _remove(self, path: str, state: State) -> None:
        if path not in state.files and path not in state.replaced:
            inside(self.root, path).unlink(missing_ok=True)
