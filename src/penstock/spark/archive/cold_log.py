"""An archive as a log to read from: follows the table while a run adds to it and compactions replace its files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from penstock.spark.archive.coverage import Coverage
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.file_reader import count_upto, group_ends, read_entries
from penstock.spark.archive.state import FileEntry, State
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location
from penstock.spark.source.rows import Entry

_opened: dict[tuple[int, Location], ColdLog] = {}


class ColdLog:
    """The newest state of an archive that this process has seen."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table, self._state = table, State()
        self._files: dict[str, list[FileEntry]] = {}
        self._coverages: dict[str, Coverage] = {}

    @classmethod
    def of(cls, root: str | Path | Location) -> ColdLog:
        """Return the log of this process, up to date; raise ArchiveMissing if there is none."""
        location = Location.of(root, what="archive")
        key = (os.getpid(), location)
        table = ArchiveTable(location)
        identity = table.log.identity
        log = _opened.get(key)
        if log is None or log.identity != identity:  # another archive was put in its place
            log = _opened[key] = cls(table)
        log.refresh()
        return log

    @property
    def identity(self) -> str:
        """The identity of the table."""
        return self._table.log.identity

    def refresh(self) -> bool:
        """Look at the table again; return whether anything was new."""
        is_new = self._table.follow(self._state)
        if is_new:
            self._coverages.clear()
            self._files = self._state.files_by_stream()
        return is_new

    @property
    def streams(self) -> list[str]:
        """The streams that are archived."""
        return self._state.streams

    def coverage(self, stream: str) -> Coverage:
        """Return what is archived of a stream."""
        found = self._coverages.get(stream)
        if found is None:
            found = self._coverages[stream] = Coverage(self._state.ranges.get(stream, ()), self._files.get(stream, ()))
        return found

    def pages(self, stream: str, after: str, upto: str, *, ids_only: bool = False) -> Iterator[list[Entry]]:
        """Return the archived entries of a range of ids, some at a time."""
        while True:
            try:
                for entry in self.coverage(stream).files_between(after, upto):
                    for page in read_entries(self._table, entry, after, upto, ids_only=ids_only):
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
        return found if inside is None else found + count_upto(self._table, inside, entry_id)

    def ends(self, entry: FileEntry, most_rows: float) -> list[tuple[str, int]]:
        """Return where a file can be cut, with the rows of each part: at its end, a big one also between row groups."""
        return [(entry.last, entry.rows)] if entry.rows <= most_rows else group_ends(self._table, entry)
