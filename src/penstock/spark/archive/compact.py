"""Makes few big files of many small ones, a day of a stream at a time; plain Python, a row group in memory at a time.

The new file is staged, read back, put in place, and one commit lets it take the place of the old ones: every reader of
the table sees each row once, before and after. The old files stay for a while, for those who read the table as it was
before. Killed anywhere, the archive is as before or as after; the next compaction finishes.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.archive.batch import MAX_FILE_ROWS
from penstock.spark.archive.file_reader import damaged, read_rows, why_changed
from penstock.spark.archive.file_writer import FileWriter, StagedFile
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.archive.state import DAY_MS, ArchiveConflict, ArchiveDamaged, FileEntry, State, in_order
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import FailPoint, Location, no_fail_point

logger = logging.getLogger("penstock.spark")
TARGET_BYTES = 256 << 20
GRACE_S = 3600.0
_MOST_GRACE_S = DAY_MS / 1000
_MANY = 64  # small files that are worth a merge during a run
_LIMITS = (64 << 10, 1 << 20, 16 << 20, TARGET_BYTES // 2)  # below which files of a day that is not over are small
_PAUSE_S, _LONGEST_PAUSE_S, _MOST_DOUBLINGS = 60.0, 3_600.0, 6  # after failed merges


@dataclass(frozen=True)
class Compacted:
    """What a compaction did."""

    merged: int  # files that were replaced
    made: int
    cleaned: int  # replaced files, of this and earlier compactions, that were removed


@dataclass
class Compaction:
    """Compacts one archive."""

    table: ArchiveTable
    target_bytes: int = TARGET_BYTES
    max_file_rows: int = MAX_FILE_ROWS
    grace_s: float = GRACE_S
    step: FailPoint = no_fail_point
    state: State = field(default_factory=State)
    is_stopping: Callable[[], bool] = lambda: False  # asked before each merge: none begins then
    most_s: float = math.inf  # after that no merge but the first begins; the next compaction continues
    sweeps: ClassVar[bool] = True  # also for files that the log has forgotten, which takes a look at all files

    def run(self) -> Compacted:
        """Compact and clean; return what was done. Raise ArchiveConflict while another compaction is at work."""
        with ArchiveLock.held(self.table.location, "compact"):
            self.table.follow(self.state)
            for staging in self.table.left_behind("compact"):
                self.table.take_back(staging, self.state)
            merged, made, until_s = 0, 0, time.monotonic() + self.most_s
            for files in self.plan():
                if self.is_stopping() or (made and time.monotonic() >= until_s):
                    break
                merged += len(files)
                made += 1
                self._merge(files)
            return Compacted(merged, made, 0 if self.is_stopping() else self.clean())

    def plan(self) -> list[list[FileEntry]]:
        """Return the files that become one, in order; days that are as they should be are left alone."""
        days = [in_order(files) for _, files in sorted(_days(self.state).items())]
        return [group for day in days for group in self._groups(day) if len(group) > 1]

    def _groups(self, files: Sequence[FileEntry]) -> Iterator[list[FileEntry]]:
        group: list[FileEntry] = []
        size = rows = 0
        for entry in files:
            size, rows = size + entry.bytes, rows + entry.rows
            if group and (size > self.target_bytes or rows > self.max_file_rows):
                yield group
                group, size, rows = [], entry.bytes, entry.rows
            group.append(entry)
        if group:
            yield group

    def _merge(self, files: Sequence[FileEntry]) -> None:
        with self.table.staging("compact", self.state) as staging:
            made = self._written(files, staging)
            self.step("written")
            self.table.place(staging, [made.entry], self.step)
            self.table.replace(self.state, {made.entry: made.stats}, files)
            self.step("committed")
        self.table.maintain(self.state, self.step)

    def _written(self, files: Sequence[FileEntry], staging: str) -> StagedFile:
        writer = FileWriter(self.table.store, staging, files[0].stream)
        try:
            for entry in files:
                self._copy(entry, writer)
        except BaseException:
            writer.abandon()
            raise
        made = writer.close()
        entry, rows = made.entry, sum(e.rows for e in files)
        if (entry.first, entry.last, entry.rows) != (files[0].first, files[-1].last, rows):
            raise ArchiveDamaged(
                f"{entry.path} does not contain the rows of the {len(files)} files it replaces; nothing was changed"
            )
        return made

    def _copy(self, entry: FileEntry, writer: FileWriter) -> None:
        location = self.table.location
        try:
            why = why_changed(self.table, entry.path, entry.bytes, entry.sha256)
            if why is not None:
                raise damaged(location, entry.path, f"{why}; nothing was changed")
            for batch in read_rows(self.table, entry):
                writer.add(batch)
        except FileNotFoundError:
            raise ArchiveDamaged(
                f"{location}/{entry.path} is missing; nothing was changed. Run `penstock archive verify`"
            ) from None

    def clean(self) -> int:
        """Remove files that were replaced longer ago than the grace; return how many there were."""
        self.step("vacuum")
        return self.table.vacuum(self.state, self.grace_s) + (self.table.sweep(self.state) if self.sweeps else 0)


@dataclass
class SmallFiles(Compaction):
    """What an archive run compacts by itself, so that the number of files stays small: see _of_today().

    No batch is archived meanwhile, so a run limits the time, and the rest is merged after the next batch.
    """

    now_s: Callable[[], float] = time.monotonic
    sweeps: ClassVar[bool] = False
    _failures: int = 0
    _not_before_s: float = -math.inf
    _damaged: set[str] = field(default_factory=set)  # not merged by this run again, so that all others are

    def run_if_it_pays(self) -> None:
        """Compact, unless there is nothing to do, or a failure was a short time ago: archiving goes on regardless."""
        if self.now_s() < self._not_before_s or not self.plan():
            return
        try:
            self.run()
            self._failures = 0
        except ArchiveConflict:
            return  # another process compacts
        except (PenstockError, OSError) as error:
            pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(self._failures, _MOST_DOUBLINGS))
            self._failures, self._not_before_s = self._failures + 1, self.now_s() + pause_s
            text = "cannot merge the small files of %s; trying again in %g s: %s"
            logger.warning(text, self.table.location, pause_s, error)

    def plan(self) -> list[list[FileEntry]]:
        """Return the files that become one."""
        days = _days(self.state)
        newest: dict[str, str] = {}
        for stream, day in days:
            newest[stream] = max(day, newest.get(stream, day))
        found = []
        # A run that has no time left merges only the smallest files of days that are over.
        limit = self.target_bytes // 2 if self.most_s > 0 else _LIMITS[1]
        # The latest days first: a merge that always fails delays only those of older days.
        for (stream, day), files in sorted(days.items(), key=lambda each: each[0][1], reverse=True):
            if day != newest[stream]:
                found += self._below(limit, files, 2)
            elif len(files) >= _MANY:
                found += self._of_today(files)
        return found

    def _of_today(self, files: Sequence[FileEntry]) -> list[list[FileEntry]]:
        """Return what is merged of a day that is not over.

        A merge needs many files, and enough bytes to make files that are no longer small at its limit. So a row is
        written again at most about once per limit, however small the batches are.
        """
        for limit in reversed(_LIMITS):
            found = self._below(limit, files, _MANY, 0 if limit == _LIMITS[0] else limit)
            if found:
                return found
        return []

    def _below(
        self, limit: int, files: Sequence[FileEntry], least_files: int, least_bytes: int = 0
    ) -> list[list[FileEntry]]:
        """Return the merges of files below a size that follow each other, where there are enough of them."""

        def is_small(entry: FileEntry) -> bool:
            return entry.bytes < limit and entry.path not in self._damaged

        if sum(map(is_small, files)) < least_files:
            return []  # of most days of an archive, before they are sorted: this runs after every batch
        found = []
        for are_small, run in itertools.groupby(in_order(files), key=is_small):
            merges = [group for group in self._groups(list(run)) if len(group) > 1] if are_small else []
            merged = [entry for group in merges for entry in group]
            if len(merged) >= least_files and sum(entry.bytes for entry in merged) >= least_bytes:
                found += merges
        return found

    def _written(self, files: Sequence[FileEntry], staging: str) -> StagedFile:
        try:
            return super()._written(files, staging)
        except ArchiveDamaged:
            if not any(entry.path in self._damaged for entry in files):  # only all of them show the damage
                self._damaged.update(entry.path for entry in files)
            raise

    def _copy(self, entry: FileEntry, writer: FileWriter) -> None:
        try:
            super()._copy(entry, writer)
        except ArchiveDamaged:
            self._damaged.add(entry.path)
            raise


def _days(state: State) -> dict[tuple[str, str], list[FileEntry]]:
    """Return the files of each stream and day, in no order."""
    found: dict[tuple[str, str], list[FileEntry]] = {}
    for entry in state.files.values():
        found.setdefault((entry.stream, entry.day), []).append(entry)
    return found


def check_grace(grace_s: float) -> None:
    """Raise ConfigurationError for a grace that cannot be kept: the log of the table names replaced files for a day."""
    if not 0 <= grace_s <= _MOST_GRACE_S:
        raise ConfigurationError(
            f"--keep-replaced (grace_s) {grace_s:g}s must be between 0s and 24h: after a day the table does not record "
            "any more when a file was replaced"
        )


def compact(
    root: str | Path | Location,
    *,
    target_bytes: int = TARGET_BYTES,
    max_file_rows: int = MAX_FILE_ROWS,
    grace_s: float = GRACE_S,
    step: FailPoint = no_fail_point,
    storage_options: Mapping[str, str] | None = None,
) -> Compacted:
    """Compact an archive; see the module. Replaced files are kept for the grace, a day at most."""
    check_grace(grace_s)
    table = ArchiveTable.of(root, storage_options)
    state = table.load()
    table.location.check_writable("archive")
    return Compaction(table, target_bytes, max_file_rows, grace_s, step, state).run()
