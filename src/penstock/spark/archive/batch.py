"""One batch into the archive: plan, stage, check, put in place, commit. Killed anywhere, it is done or not done.

| killed                                 | what is left                          | the restart                        |
|----------------------------------------|---------------------------------------|------------------------------------|
| while files are staged                 | files in `_staging`                   | removes them; runs the batch again |
| between two files being put in place   | the same, and files that no log names | likewise                           |
| after the commit, before Spark's own   | everything                            | finds all of it archived: no work  |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock import ids
from penstock.spark.archive.file_reader import count_upto
from penstock.spark.archive.file_writer import ArchiveTask, Copied, StagedFile
from penstock.spark.archive.state import ArchiveConflict, ArchiveDamaged, FileEntry, RangeEntry, State, in_order
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import FailPoint, make_directory, no_fail_point
from penstock.spark.source.catalogue import report_loss
from penstock.spark.source.offsets import BatchRange, IdRange, Offsets, Position

Write = Callable[[ArchiveTask], Sequence[Copied]]  # runs the task over what is new in the batch
MAX_FILE_ROWS = 1_000_000
_HINT = (
    "They were trimmed before they were archived, or the checkpoint of the run is newer than the table; in that "
    "case remove the checkpoint, and the run continues where the table ends. To continue without the entries, "
    "set failOnDataLoss=false (--allow-data-loss)"
)


@dataclass(frozen=True)
class _Wanted:
    """What is new of one stream."""

    whole: RangeEntry
    pieces: tuple[IdRange, ...]


@dataclass
class BatchArchiver:
    """Archives batch after batch."""

    table: ArchiveTable
    fail_on_data_loss: bool = True
    max_file_rows: int = MAX_FILE_ROWS
    step: FailPoint = no_fail_point
    state: State = field(default_factory=State)
    _last: int | None = None  # commit of a run, as far as this run knows: its own, or one before it began

    def open(self) -> None:
        """Load what is archived, and remove what a killed run has left; the caller holds the lock."""
        if self.table.exists():
            self.table.follow(self.state)
            self._last = self.table.last_append()
            self.table.log.make_durable()  # retention may trim what is archived, by whomever
        for staging in self.table.left_behind("batch"):  # a compaction may be running at the same time
            self.table.take_back(staging, self.state)

    def archive(self, offsets: Offsets, write: Write) -> int | None:
        """Archive what is new in a batch; return how many entries that were, None if nothing was new."""
        if self.table.exists():
            self._follow()
        wanted = self._all_new(offsets)
        if not wanted:
            return None
        if not self.table.exists():
            self.table.create()
            self._follow()
        with self.table.staging("batch", self.state) as staging:
            if self.table.location.local is not None:
                make_directory(self.table.location.local / staging)  # tasks elsewhere look whether they see it
            rows = self._archive(wanted, write, staging)
        self.table.maintain(self.state, self.step)
        return rows

    def _follow(self) -> None:
        """Take in what a compaction has committed; raise ArchiveConflict if another run has."""
        self.table.follow(self.state)
        if self.table.last_append() != self._last:
            raise ArchiveConflict(
                f"another run has archived to {self.table.location} since this one started: stop one of them"
            )

    def _archive(self, wanted: Sequence[_Wanted], write: Write, staging: str) -> int:
        pieces = tuple(piece for each in wanted for piece in each.pieces)
        copied = write(ArchiveTask(self.table.location, staging, pieces, self.max_file_rows))
        self.step("written")
        staged = [made for made in copied if isinstance(made, StagedFile)]
        lost = [each for each in copied if isinstance(each, IdRange)]
        entries = [made.entry for made in staged]
        ranges = [found for each in wanted for found in self._checked(each, entries, lost)]
        self._check_sizes(staging, staged)
        self.step("checked")
        self.table.place(staging, (made.entry for made in staged), self.step)
        self.table.append(self.state, ranges, {made.entry: made.stats for made in staged})
        self._last = self.table.last_append()
        self.step("committed")
        return sum(each.rows for each in ranges)

    def _all_new(self, offsets: Offsets) -> list[_Wanted]:
        return [each for name, progress in sorted(offsets.streams.items()) if (each := self._new(name, progress))]

    def _new(self, stream: str, progress: BatchRange) -> _Wanted | None:
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
        if at != archived and not self._is_known(stream, at):
            raise ArchiveConflict(
                f"stream {stream!r} has ids up to {at.id}, but other entries are archived up to {archived.id}: "
                "it was deleted and created again, or is another stream with the same name. Archive it under "
                f"another root than {self.table.location}"
            )

    def _is_known(self, stream: str, at: Position) -> bool:
        """Return whether a position is in the archived stream: at least as many entries precede it as are archived."""
        found = self.state.range_of(stream, at.id)
        if found is None:  # a batch that ended with a loss left no entry at its end, where the next range begins
            starts = (each for each in self.state.ranges.get(stream, ()) if each.after == at.id)
            return any(at.rank is None or each.after_n is None or at.rank >= each.after_n for each in starts)
        if at == found.end:
            return True
        if at.rank is None or found.after_n is None:
            return any(entry.last == at.id for entry in self.state.files_of(stream))
        after, upto = ids.parse(found.after), ids.parse(at.id)
        rows = 0
        for entry in self.state.files_of(stream):
            if after < ids.parse(entry.first) <= upto:
                is_whole = ids.parse(entry.last) <= upto
                rows += entry.rows if is_whole else count_upto(self.table, entry, at.id)
        return at.rank >= found.after_n + rows

    def _gap(self, stream: str, archived: Position, start: Position) -> int | None:
        lost: int | None = None
        # A lower rank than before: the stream was created again, and how much the old one had is unknown.
        if archived.rank is not None and start.rank is not None and start.rank >= archived.rank:
            lost = start.rank - archived.rank
        if lost == 0:
            return 0
        number = "an unknown number of" if lost is None else f"{lost:,}"
        text = f"stream {stream!r}: {number} entries between {archived.id} and {start.id} were never archived"
        report_loss(text, _HINT, fails=self.fail_on_data_loss)
        return lost

    def _checked(self, wanted: _Wanted, made: Sequence[FileEntry], lost: Sequence[IdRange]) -> list[RangeEntry]:
        """Check the files of a stream against the range that they are to hold; return what of it they have."""
        whole = wanted.whole
        files = in_order(entry for entry in made if entry.stream == whole.stream)
        at = whole.after
        for entry in files:
            if not ids.parse(at) < ids.parse(entry.first) <= ids.parse(entry.last) <= ids.parse(whole.upto):
                raise ArchiveDamaged(f"stream {whole.stream!r}: {entry.path} overlaps a neighbouring range")
            at = entry.last
        rows = sum(entry.rows for entry in files)
        if whole.after_n is not None and whole.upto_n is not None and rows > whole.upto_n - whole.after_n:
            raise ArchiveDamaged(
                f"stream {whole.stream!r}: read {rows:,} entries after {whole.after} up to {whole.upto}, but "
                f"the server counts {whole.upto_n - whole.after_n:,}; nothing was committed"
            )
        gaps = _joined([each for each in lost if each.stream == whole.stream and not each.is_empty])
        return self._around(replace(whole, rows=rows), gaps, files) if gaps else [replace(whole, rows=rows)]

    def _around(self, whole: RangeEntry, gaps: Sequence[IdRange], files: Sequence[FileEntry]) -> list[RangeEntry]:
        """Return what of a range is archived, if entries were trimmed after it was planned."""
        count = None
        if whole.after_n is not None and whole.upto_n is not None:
            count = whole.upto_n - whole.after_n - whole.rows
            if count == 0:
                return [whole]  # all of it was read: it was trimmed up to where a task began, and no further
        for gap in gaps:
            text = f"stream {whole.stream!r}: entries after {gap.after} up to {gap.upto} were never archived"
            report_loss(text, _HINT, fails=self.fail_on_data_loss)
        # How many are missing is known of all gaps together.
        lost = [whole.lost, *[count if len(gaps) == 1 else None for _ in gaps]]
        starts = [Position(whole.after, whole.after_n), *[Position(gap.upto) for gap in gaps]]
        ends = [*[Position(gap.after) for gap in gaps], whole.end]
        if starts[-1].id == whole.upto:
            starts[-1] = whole.end
        if ends[0].id == whole.after:  # the range begins with a gap
            lost[:2] = [None if None in lost[:2] else sum(each or 0 for each in lost[:2])]
            del starts[0], ends[0]
        found = [
            RangeEntry(whole.stream, start.id, end.id, 0, start.rank, end.rank, missing)
            for start, end, missing in zip(starts, ends, lost, strict=True)
        ]
        return [replace(each, rows=_rows_of(each, files)) for each in found]

    def _check_sizes(self, staging: str, staged: Sequence[StagedFile]) -> None:
        # On a shared file system: what the task has made durable must be what this process sees.
        found = {file.path: file.size for file in self.table.store.walk(staging)}
        for made in staged:
            path = f"{staging}/{made.entry.path}"
            if found.get(path) != made.entry.bytes:
                raise ArchiveDamaged(
                    f"the driver does not see {self.table.location}/{path} as its task wrote it: the driver and "
                    f"all executors must share {self.table.location}. Nothing was committed"
                )


def _joined(gaps: Sequence[IdRange]) -> list[IdRange]:
    """Return gaps in order, those that meet as one: each task reports those of its pieces."""
    found: list[IdRange] = []
    for gap in sorted(gaps, key=lambda each: ids.parse(each.after)):
        if found and ids.parse(gap.after) <= ids.parse(found[-1].upto):
            found[-1] = replace(found[-1], upto=max(found[-1].upto, gap.upto, key=ids.parse))
        else:
            found.append(gap)
    return found


def _rows_of(each: RangeEntry, files: Sequence[FileEntry]) -> int:
    """Return how many rows the files have that begin in a range. A file across a gap counts where it begins."""
    after, upto = ids.parse(each.after), ids.parse(each.upto)
    return sum(entry.rows for entry in files if after < ids.parse(entry.first) <= upto)
