"""The manifest on disk: one file for each commit, created once and never changed.

A commit is there when its file is there. Its number is the lock: of two writers that see the same state, one creates
the next file and the other finds that it exists, looks again and tries the next number if nothing stands
against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.archive.durable import Step, create, make_directory, no_step
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.manifest import Commit, State

_NAME = re.compile(r"(\d{12})\.json")


@dataclass(frozen=True)
class ManifestLog:
    """The commits of an archive."""

    layout: Layout

    def exists(self) -> bool:
        """Tell whether there is an archive."""
        return self.layout.manifest.is_dir()

    def load(self) -> State:
        """Return the newest state; raise ArchiveDamaged if a commit is missing or was changed."""
        state = State()
        self.follow(state)
        return state

    def follow(self, state: State) -> bool:
        """Bring a state up to date; tell whether anything was new."""
        known = state.seq
        for number in self.numbers():
            if number <= known:
                continue
            if number != state.seq + 1:
                raise ArchiveDamaged(
                    f"{self.layout.manifest}: commit {state.seq + 1} is missing, though there is {number}; run "
                    "`penstock archive verify` to see what it leaves uncovered"
                )
            commit = self.read(number)
            if commit.prev != state.check or commit.seq != number:
                raise ArchiveDamaged(f"{self.path(number)} does not follow the commit before it")
            state.apply(commit)
        return state.seq > known

    def numbers(self) -> list[int]:
        """Return the numbers of the commits that are there."""
        if not self.exists():
            return []
        found = (_NAME.fullmatch(file.name) for file in self.layout.manifest.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def read(self, number: int) -> Commit:
        """Return one commit."""
        file = self.path(number)
        return Commit.load(file.read_bytes(), str(file))

    def path(self, number: int) -> Path:
        """Return the file of a commit."""
        return self.layout.manifest / f"{number:012d}.json"

    def commit(self, commit: Commit, step: Step = no_step) -> None:
        """Add a commit; raise FileExistsError if somebody else has added one of this number."""
        make_directory(self.layout.manifest)
        create(self.path(commit.seq), commit.dump(), step)
