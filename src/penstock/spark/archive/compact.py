"""Makes few big files of many small ones, a day of a stream at a time; plain Python, a row group in memory at a time.

The new file is written aside, read back, put in place, and one commit lets it take the place of the old ones. These
stay for a while: whoever read the manifest before may still be reading them. Killed anywhere, the archive is as before
or as after; a second run finds nothing to do, or finishes.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.spark.archive.batch import MAX_FILE_ROWS
from penstock.spark.archive.digest import RowDigest
from penstock.spark.archive.durable import Step, check_writable, make_directory, no_step
from penstock.spark.archive.errors import ArchiveConflict, ArchiveDamaged, ArchiveMissing
from penstock.spark.archive.file_writer import FileWriter, read_batches
from penstock.spark.archive.layout import Layout, inside
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import Commit, FileEntry, State
from penstock.spark.archive.placing import Placed
from penstock.spark.archive.rows import SCHEMA

TARGET_BYTES = 256 << 20
GRACE_S = 3600.0


@dataclass(frozen=True)
class Compacted:
    """What a compaction did."""

    merged: int  # files that were replaced
    made: int
    cleaned: int  # replaced files, of this and earlier compactions, that were removed


@dataclass
class Compaction:
    """Compacts one archive."""

    layout: Layout
    target_bytes: int = TARGET_BYTES
    max_file_rows: int = MAX_FILE_ROWS
    grace_s: float = GRACE_S
    step: Step = no_step
    state: State = field(default_factory=State)

    @classmethod
    def of(cls, root: str | Path, **settings: float) -> Compaction:
        """Open an archive; raise ArchiveMissing if there is none."""
        layout = Layout.of(root)
        log = ManifestLog(layout)
        if not log.exists():
            raise ArchiveMissing(f"there is no archive at {layout.root}: {layout.manifest} does not exist")
        check_writable(layout.root)
        return cls(layout, **settings, state=log.load())  # type: ignore[arg-type]  # the settings above

    def run(self) -> Compacted:
        """Compact and clean; return what was done."""
        merged = made = 0
        for files in self.plan():
            merged += len(files)
            made += 1
            self._merge(files)
        return Compacted(merged, made, self.clean())

    def plan(self) -> list[list[FileEntry]]:
        """Return the files that become one, in order; days that are as they should be are left alone."""
        found = []
        for stream in self.state.streams:
            for _, files in itertools.groupby(self.state.files_of(stream), key=lambda entry: entry.date):
                found += [group for group in self._groups(list(files)) if len(group) > 1]
        return found

    def _groups(self, files: Sequence[FileEntry]) -> Iterator[list[FileEntry]]:
        group: list[FileEntry] = []
        for entry in files:
            together = [*group, entry]
            is_too_big = sum(e.bytes for e in together) > self.target_bytes
            if group and (is_too_big or sum(e.rows for e in together) > self.max_file_rows):
                yield group
                group = []
            group = [*group, entry]
        if group:
            yield group

    def _merge(self, files: Sequence[FileEntry]) -> None:
        staging = self.layout.staging / f"compact-{secrets.token_hex(8)}"
        make_directory(staging)
        try:
            writer = FileWriter(staging, files[0].stream)
            try:
                for entry in files:
                    self._copy(entry, writer)
            except BaseException:
                writer.abandon()
                raise
            made = writer.close()
            if (made.first, made.last, made.rows) != (files[0].first, files[-1].last, sum(e.rows for e in files)):
                raise ArchiveDamaged(f"{made.path} does not hold what {len(files)} files held; nothing was changed")
            self.step("written")
            placed = Placed(self.layout.root)
            placed.put(writer.staged, made)
            self.step("placed")
            try:
                self._commit(placed.entries[0], files)
            except ArchiveConflict:
                placed.take_back(self.state)
                raise
            self.step("committed")
            placed.remove_leftovers(self.state)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _copy(self, entry: FileEntry, writer: FileWriter) -> None:
        digest = RowDigest(SCHEMA)
        file = inside(self.layout.root, entry.path)
        try:
            for batch in read_batches(file):
                digest.add(batch)
                writer.add(batch)
        except FileNotFoundError:
            raise ArchiveDamaged(f"{file} is missing; nothing was changed. Run `penstock archive verify`") from None
        if digest.sum() != entry.row_sum:
            raise ArchiveDamaged(
                f"{file}: its rows are not those that were archived; nothing was changed. Run `penstock archive verify`"
            )

    def _commit(self, made: FileEntry, old: Sequence[FileEntry]) -> None:
        log = ManifestLog(self.layout)
        paths = tuple(entry.path for entry in old)
        while True:
            commit = Commit(
                self.state.seq + 1,
                "compact",
                time.time_ns() // 1_000_000,
                add=(made,),
                remove=paths,
                prev=self.state.check,
            )
            try:
                log.commit(commit, self.step)
            except FileExistsError:
                log.follow(self.state)  # new batches, which touch no file of ours, or another compaction
                if not all(path in self.state.files for path in paths):
                    raise ArchiveConflict(
                        f"another compaction of {self.layout.root} replaced the same files; let one of them run"
                    ) from None
                continue
            self.state.apply(commit)
            return

    def clean(self) -> int:
        """Remove files that were replaced longer ago than the grace; return how many were there."""
        until_ms = time.time_ns() // 1_000_000 - int(self.grace_s * 1000)
        removed = 0
        for path, replaced_ms in self.state.replaced.items():
            file = inside(self.layout.root, path)
            if replaced_ms <= until_ms and path not in self.state.files and file.exists():
                file.unlink()
                removed += 1
                self.step("cleaned")
        for place in self.layout.staging.glob("compact-*"):  # of compactions that were killed
            if place.stat().st_mtime * 1000 <= until_ms:
                shutil.rmtree(place, ignore_errors=True)
        return removed


def compact(
    root: str | Path,
    *,
    target_bytes: int = TARGET_BYTES,
    max_file_rows: int = MAX_FILE_ROWS,
    grace_s: float = GRACE_S,
    step: Step = no_step,
) -> Compacted:
    """Compact an archive; see the module."""
    made = Compaction.of(root, target_bytes=target_bytes, max_file_rows=max_file_rows, grace_s=grace_s)
    made.step = step
    return made.run()
