"""Small files become big ones, and nobody notices."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.spark.archive import ArchiveDamaged, compact, verify
from penstock.spark.archive.compact import TARGET_BYTES, Compaction, SmallFiles
from penstock.spark.archive.file_reader import batches_of
from penstock.spark.archive.state import DAY_MS, FileEntry, State, day_of, in_order
from penstock.spark.archive.table import ArchiveTable, load_state
from tests.spark.archive.streams import START_MS, Crash, Stream, archive, archived, files_of, opened


def filled(root: Path, batches: int = 6, every_ms: int = 1) -> Stream:
    stream = Stream()
    stream.add(batches * 10, every_ms=every_ms)
    archiver = opened(root)
    for start in range(0, batches * 10, 10):
        archive(archiver, stream, start, start + 10)
    return stream


def test_the_files_of_a_day_become_one_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    stream = filled(tmp_path, every_ms=3_600_000)  # 24 a day: a batch may span two
    before = files_of(tmp_path)
    done = compact(tmp_path)
    assert (done.merged, done.made, done.cleaned) == (8, 3, 0)
    assert [e.rows for e in files_of(tmp_path)] == [24, 24, 12]
    assert archived(tmp_path) == stream.entries
    # Whoever has opened the table before still reads.
    old = [b.num_rows for entry in before for b in batches_of(tmp_path / entry.path)]
    assert sum(old) == 60
    assert compact(tmp_path).made == 0
    assert compact(tmp_path, grace_s=0).cleaned == 8
    version = load_state(tmp_path).version
    assert compact(tmp_path, grace_s=0).cleaned == 0  # the log still names them
    assert load_state(tmp_path).version == version
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound


def test_another_reader_sees_each_row_once_before_each_step_and_after_them(tmp_path: Path) -> None:
    ids = sorted(entry_id for entry_id, _ in filled(tmp_path, every_ms=3_600_000).entries)
    early = _with_duckdb(tmp_path)
    seen: list[list[str]] = []
    compact(tmp_path, step=lambda _: seen.append(_ids(_with_duckdb(tmp_path))))
    assert len(seen) > 3
    assert all(found == ids for found in [*seen, _ids(_with_duckdb(tmp_path))])
    assert _ids(early) == ids  # it reads files that are replaced by now
    compact(tmp_path, grace_s=0)
    assert _ids(_with_duckdb(tmp_path)) == ids


def _with_duckdb(root: Path) -> Any:
    import duckdb  # not in every process of the tests: it prints what it leaks when some of them end

    return duckdb.connect().from_arrow(DeltaTable(root).to_pyarrow_dataset())


def _ids(rows: Any) -> list[str]:
    return sorted(entry_id for (entry_id,) in rows.project("id").fetchall())


def test_killed_at_any_step_the_archive_stays_whole_and_the_next_run_finishes(tmp_path: Path) -> None:
    for number in range(40):
        root = tmp_path / str(number)
        stream = filled(root, batches=3)
        seen: list[str] = []

        def crash(name: str, seen: list[str] = seen, at: int = number) -> None:
            seen.append(name)
            if len(seen) > at:
                raise Crash(name)

        try:
            compact(root, grace_s=0, step=crash)
        except Crash:
            pass
        else:
            assert seen == ["written", "placed", "committed", "vacuum"]
            break
        assert archived(root) == stream.entries, seen
        compact(root, grace_s=0)
        assert archived(root) == stream.entries
        assert verify(root, rows=True).is_sound, seen
        assert len(list(root.glob("stream=*/day=*/*"))) == 1


def test_archiving_goes_on_meanwhile(tmp_path: Path) -> None:
    stream = filled(tmp_path)
    stream.add(10)
    compaction = Compaction(ArchiveTable.of(tmp_path), grace_s=0)
    compaction.step = lambda name: archive(opened(tmp_path), stream, 60, 70) if name == "written" else None
    assert compaction.run().merged == 6
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound


def test_a_damaged_file_is_not_carried_over(tmp_path: Path) -> None:
    filled(tmp_path)
    files = [tmp_path / entry.path for entry in files_of(tmp_path)]
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(ArchiveDamaged, match="nothing was changed"):
        compact(tmp_path)
    files[1].unlink()
    with pytest.raises(ArchiveDamaged, match="is missing"):
        compact(tmp_path)
    assert len(files_of(tmp_path)) == 6


def test_a_file_stays_below_the_greatest_size(tmp_path: Path) -> None:
    stream = filled(tmp_path)
    compact(tmp_path, max_file_rows=25)
    assert [e.rows for e in files_of(tmp_path)] == [20, 20, 20]
    assert archived(tmp_path) == stream.entries


class Planned:
    """An archive that exists only as a list of files, which are merged as a run plans it."""

    def __init__(self, root: Path, **settings: int) -> None:
        self.state = State()
        self.small = SmallFiles(ArchiveTable.of(root), state=self.state, **settings)
        self.added = self.rewritten = self.most = 0

    def add(self, ms: int, size: int, rows: int = 1) -> None:
        at = f"{ms}-0"
        self._put(FileEntry(at, "orders", day_of(ms), at, at, rows, size, ""))
        self.added += size
        for merge in self.small.plan():
            first, last, size = merge[0], merge[-1], sum(entry.bytes for entry in merge)
            for entry in merge:
                del self.state.files[entry.path]
            rows = sum(entry.rows for entry in merge)
            self._put(FileEntry(last.path, "orders", first.day, first.first, last.last, rows, size, ""))
            self.rewritten += size
        self.most = max(self.most, len(self.state.files))

    def _put(self, entry: FileEntry) -> None:
        self.state.files[entry.path] = entry


_KB, _MB = 1 << 10, 1 << 20
_chance = random.Random(1)


@pytest.mark.parametrize(
    "sizes",
    [[2 * _MB], [4 * _KB], [40 * _MB, *[2 * _MB] * 50], [1 << _chance.randrange(12, 26) for _ in range(1_500)]],
    ids=["of two megabytes", "of four kilobytes", "with a big one now and then", "of any size"],
)
def test_a_run_keeps_the_number_of_files_small_and_rewrites_a_row_few_times(tmp_path: Path, sizes: list[int]) -> None:
    archive, batches = Planned(tmp_path), 1_500  # of two days
    for n, size in zip(range(batches), itertools.cycle(sizes), strict=False):
        archive.add(START_MS + n * 2 * DAY_MS // batches, size)
    assert archive.most <= 2 * 64 + 2 * archive.added // TARGET_BYTES
    assert archive.rewritten <= 4 * archive.added
    of_yesterday = [entry for entry in in_order(archive.state.files.values()) if entry.day == day_of(START_MS)]
    for left, right in itertools.pairwise(of_yesterday):
        assert max(left.bytes, right.bytes) >= TARGET_BYTES // 2


def test_files_that_have_as_many_rows_as_a_file_may_have_are_not_written_again(tmp_path: Path) -> None:
    archive, batches = Planned(tmp_path, max_file_rows=1_000), 600
    for n in range(batches):
        archive.add(START_MS + n * DAY_MS // batches, _MB, rows=400)
    archive.add(START_MS + DAY_MS, _MB)
    assert archive.rewritten <= 2 * archive.added
    assert len(archive.state.files) == batches // 2 + 1


def test_a_run_merges_the_latest_days_first_and_only_small_files_while_it_has_no_time_left(tmp_path: Path) -> None:
    small = SmallFiles(ArchiveTable.of(tmp_path), state=State())
    for day, size in enumerate([2 * _MB, _KB, 2 * _MB, _KB, _KB]):
        for n in range(2):
            at = f"{START_MS + day * DAY_MS + n}-0"
            small.state.files[at] = FileEntry(at, "orders", day_of(START_MS + day * DAY_MS), at, at, 1, size, "")

    def days() -> list[str]:
        return [merge[0].day for merge in small.plan()]

    assert days() == [day_of(START_MS + day * DAY_MS) for day in (3, 2, 1, 0)]
    small.most_s = 0
    assert days() == [day_of(START_MS + day * DAY_MS) for day in (3, 1)]
