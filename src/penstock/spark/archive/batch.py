"""One batch into the archive: plan, write aside, check, put in place, commit. Killed anywhere, it is done or not done.

| killed                                 | what is left                          | the restart                        |
|----------------------------------------|---------------------------------------|------------------------------------|
| while files are written aside          | files in `_staging`                   | runs the batch again; removes them |
| between two files being put in place   | files that the manifest does not know | makes the same again, or others    |
| before the commit has its name         | a draft beside the manifest           | as above                           |
| after it, before Spark notes the batch | everything                            | finds all of it archived: no work  |
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock import ids
from penstock.errors import DataLost
from penstock.spark.archive.durable import Step, make_directory, no_step
from penstock.spark.archive.errors import ArchiveConflict, ArchiveDamaged
from penstock.spark.archive.file_entries import count_upto
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import Commit, FileEntry, RangeEntry, State, in_order
from penstock.spark.archive.placing import Placed
from penstock.spark.archive.task import ArchiveTask, StagedFile
from penstock.spark.reading.offsets import IdRange, Offsets, Position, Progress

logger = logging.getLogger("penstock.spark")
Write = Callable[[ArchiveTask], Sequence[StagedFile]]  # runs the task over what is new in the batch
MAX_FILE_ROWS = 1_000_000


@dataclass(frozen=True)
class _Wanted:
    """What is new of one stream."""

    whole: RangeEntry
    pieces: tuple[IdRange, ...]


@dataclass
class BatchArchiver:
    """Archives batch after batch."""

    layout: Layout
    fail_on_data_loss: bool = True
    max_file_rows: int = MAX_FILE_ROWS
    step: Step = no_step
    state: State = field(default_factory=State)

    @property
    def log(self) -> ManifestLog:
        """The manifest."""
        return ManifestLog(self.layout)

    def open(self) -> None:
        """Read the manifest, and remove what an earlier run left aside."""
        self.state = self.log.load()
        for place in self.layout.staging.glob("batch-*"):  # a compaction may be at work beside us
            shutil.rmtree(place, ignore_errors=True)

    def archive(self, offsets: Offsets, write: Write, batch: int = 0) -> Commit | None:
        """Archive what is new in a batch; return None if nothing was."""
        self.log.follow(self.state)
        wanted = [each for name, progress in sorted(offsets.streams.items()) if (each := self._new(name, progress))]
        if not wanted:
            return None
        staging = self.layout.staging / f"batch-{secrets.token_hex(8)}"
        make_directory(staging)
        try:
            task = ArchiveTask(str(staging), tuple(p for each in wanted for p in each.pieces), self.max_file_rows)
            staged = write(task)
            self.step("written")
            ranges = [self._checked(each, [made.entry for made in staged]) for each in wanted]
            self._check_sizes(staged)
            self.step("checked")
            files = Placed(self.layout.root)
            for made in staged:
                files.put(Path(made.staged), made.entry)
                self.step("placed")
            try:
                commit = self._commit(ranges, files.entries, batch)
            except ArchiveConflict:
                files.take_back(self.state)
                raise
            self.step("committed")
            files.remove_leftovers(self.state)
            return commit
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _new(self, stream: str, progress: Progress) -> _Wanted | None:
        """Return what of a batch is not archived; raise for what cannot be joined to what is."""
        start, end = progress.start, progress.end
        lost: int | None = 0
        archived = self.state.end(stream)
        if ids.parse(end.id) <= ids.parse(start.id):
            return None
        if archived is not None:
            if ids.parse(start.id) < ids.parse(archived.id):
                self._check_known(stream, min(end, archived, key=lambda at: ids.parse(at.id)), archived)
                start = archived
            elif start.id != archived.id:
                lost = self._gap(stream, archived, start)
        pieces = []
        for piece in progress.pieces(stream):
            if ids.parse(piece.after) < ids.parse(start.id):
                piece = replace(piece, after=start.id, rank=start.rank)  # noqa: PLW2901  # what is new of it
            if not piece.is_empty:
                pieces.append(piece)
        if not pieces:
            return None
        return _Wanted(RangeEntry(stream, start.id, end.id, 0, start.rank, end.rank, lost), tuple(pieces))

    def _check_known(self, stream: str, at: Position, archived: Position) -> None:
        if not self._is_known(stream, at):
            raise ArchiveConflict(
                f"stream {stream!r} brings ids up to {at.id}, and is archived up to {archived.id} with others: it was "
                f"deleted and created anew, or is another stream of that name. Archive it under another root than "
                f"{self.layout.root}"
            )

    def _is_known(self, stream: str, at: Position) -> bool:
        """Tell whether a position is one of the archived stream: no fewer entries lie before it than are archived."""
        found = self.state.range_of(stream, at.id)
        if found is None or at == found.end:
            return found is not None
        if at.rank is None or found.after_n is None:
            return False
        after, upto = ids.parse(found.after), ids.parse(at.id)
        rows = 0
        for entry in self.state.files_of(stream):
            if after < ids.parse(entry.first) <= upto:
                is_whole = ids.parse(entry.last) <= upto
                rows += entry.rows if is_whole else count_upto(self.layout.root, entry, at.id)
        return at.rank >= found.after_n + rows

    def _gap(self, stream: str, archived: Position, start: Position) -> int | None:
        lost: int | None = None
        # A lower rank than before is that of a stream which was created anew: how much the old one had nobody knows.
        if archived.rank is not None and start.rank is not None and start.rank >= archived.rank:
            lost = start.rank - archived.rank
        if lost == 0:
            return 0
        number = "an unknown number of" if lost is None else f"{lost:,}"
        text = f"stream {stream!r}: {number} entries between {archived.id} and {start.id} are in no archive"
        if self.fail_on_data_loss:
            raise DataLost(
                f"{text}. They were trimmed before they were archived, or {self.layout.checkpoint} is newer than the "
                "manifest: then remove it, and the archive goes on from the manifest. To go on without them, set "
                "failOnDataLoss=false (--allow-data-loss)"
            )
        logger.warning("%s; going on without them (failOnDataLoss=false)", text)
        return lost

    def _checked(self, wanted: _Wanted, made: Sequence[FileEntry]) -> RangeEntry:
        """Check the files of a stream against the range that they are to hold; return it with its rows."""
        whole = wanted.whole
        files = in_order(entry for entry in made if entry.stream == whole.stream)
        at = whole.after
        for entry in files:
            if not ids.parse(at) < ids.parse(entry.first) <= ids.parse(entry.last) <= ids.parse(whole.upto):
                raise ArchiveDamaged(f"stream {whole.stream!r}: {entry.path} overlaps what lies before or behind it")
            at = entry.last
        rows = sum(entry.rows for entry in files)
        if whole.after_n is not None and whole.upto_n is not None and rows > whole.upto_n - whole.after_n:
            raise ArchiveDamaged(
                f"stream {whole.stream!r}: {rows:,} entries were read behind {whole.after} up to {whole.upto}, where "
                f"the server counts {whole.upto_n - whole.after_n:,}; nothing was committed"
            )
        return replace(whole, rows=rows)

    def _check_sizes(self, staged: Sequence[StagedFile]) -> None:
        # On a shared file system: what the task has made durable must be what this process sees.
        for made in staged:
            file = Path(made.staged)
            if not file.is_file() or file.stat().st_size != made.entry.bytes:
                raise ArchiveDamaged(
                    f"{file} is not there as its task wrote it: the driver and all executors must share "
                    f"{self.layout.root}. Nothing was committed"
                )

    def _commit(self, ranges: Sequence[RangeEntry], files: Sequence[FileEntry], batch: int) -> Commit:
        before = {each.stream: self.state.end(each.stream) for each in ranges}
        while True:
            commit = Commit(
                seq=self.state.seq + 1,
                kind="append",
                time_ms=time.time_ns() // 1_000_000,
                ranges=tuple(ranges),
                add=tuple(files),
                note={"batch": batch},
                prev=self.state.check,
            )
            try:
                self.log.commit(commit, self.step)
            except FileExistsError:
                self.log.follow(self.state)  # a compaction, say, which changes no range
                if any(self.state.end(stream) != end for stream, end in before.items()):
                    raise ArchiveConflict(
                        f"another run has archived to {self.layout.root} at the same time: stop one of the two"
                    ) from None
                continue
            self.state.apply(commit)
            return commit
