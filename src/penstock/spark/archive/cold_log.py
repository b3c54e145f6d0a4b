"""An archive as a log to read from: follows the manifest while a run adds to it and compactions replace its files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.spark.archive.coverage import Coverage
from penstock.spark.archive.errors import ArchiveDamaged, ArchiveMissing
from penstock.spark.archive.file_entries import count_upto, group_ends, read_entries
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import FileEntry, State
from penstock.spark.reading.rows import Entry

_opened: dict[tuple[int, str], ColdLog] = {}


class ColdLog:
    """The newest state of an archive that this process has seen."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._log = layout, ManifestLog(layout)
        self._state = State()
        self._coverages: dict[str, Coverage] = {}

    @classmethod
    def of(cls, root: str) -> ColdLog:
        """Return the log of this process, up to date; raise ArchiveMissing if there is none."""
        layout = Layout.of(root)
        key = (os.getpid(), str(layout.root))
        log = _opened.get(key)
        if log is None:
            log = cls(layout)
        log.refresh()
        _opened[key] = log
        return log

    def refresh(self) -> bool:
        """Look at the manifest again; tell whether anything was new."""
        if not self._log.exists():
            raise ArchiveMissing(f"there is no archive at {self._layout.root}: start `penstock archive run` first")
        if self._state.seq and not self._is_same():
            self._state = State()  # another archive was put in its place
        is_new = self._log.follow(self._state)
        if is_new:
            self._coverages.clear()
        return is_new

    def _is_same(self) -> bool:
        try:
            return self._log.read(self._state.seq).check == self._state.check
        except OSError:
            return False

    @property
    def streams(self) -> list[str]:
        """The streams that are archived."""
        return self._state.streams

    def coverage(self, stream: str) -> Coverage:
        """Return what is archived of a stream."""
        found = self._coverages.get(stream)
        if found is None:
            found = self._coverages[stream] = Coverage.of(self._state, stream)
        return found

    def pages(self, stream: str, after: str, upto: str, *, ids_only: bool = False) -> Iterator[list[Entry]]:
        """Return the archived entries of a range of ids, some at a time."""
        while True:
            try:
                for entry in self.coverage(stream).files_between(after, upto):
                    for page in read_entries(self._layout.root, entry, after, upto, ids_only=ids_only):
                        yield page
                        after = page[-1][0].decode()
            except FileNotFoundError as error:
                if not self.refresh():  # else a compaction has replaced and cleaned it meanwhile
                    raise ArchiveDamaged(
                        f"{error.filename or error} is missing; run `penstock archive verify`"
                    ) from None
            else:
                return

    def rank(self, stream: str, entry_id: str) -> int | None:
        """Return how many entries were added up to an archived id; None where that cannot be told."""
        coverage = self.coverage(stream)
        segment = coverage.holding(entry_id)
        rank = None if segment is None else coverage.complete_rank(segment)
        if segment is None or rank is None:
            return None
        whole, inside = coverage.files_before(entry_id)
        before = coverage.files_before(segment.start.id)[0]
        found = rank + sum(entry.rows for entry in whole[len(before) :])
        return found if inside is None else found + count_upto(self._layout.root, inside, entry_id)

    def ends(self, entry: FileEntry, most_rows: float) -> list[tuple[str, int]]:
        """Return where a file can be cut, with the rows of each part: at its end, a big one also between row groups."""
        return [(entry.last, entry.rows)] if entry.rows <= most_rows else group_ends(self._layout.root, entry)
