"""An archive that lives long: its log is shortened, its small files are merged, and a kill in between loses nothing."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.errors import ConfigurationError
from penstock.spark.archive import ArchiveConflict, ArchiveRun, compact, table, verify
from penstock.spark.archive.compact import Compaction, SmallFiles
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.archive.table import ArchiveTable, load_state
from penstock.spark.lake import files
from penstock.spark.lake.files import Location, StoreFailed
from tests.helpers.threads import join, start
from tests.spark.archive.streams import Crash, Stream, archive, archived, files_of, opened
from tests.spark.driver import PYTHONPATH, Process

verification: Any = import_module("penstock.spark.archive.verify")  # the function has the name of its module
_OLD_S = 1_000_000.0


def fill(root: Path, stream: Stream, start: int, commits: int) -> None:
    archiver = opened(root)
    for n in range(start, start + commits):
        archive(archiver, stream, n, n + 1)


def age(root: Path) -> None:
    """Makes the files of the log older than it is kept."""
    for file in (root / "_delta_log").iterdir():
        at = file.stat().st_mtime - _OLD_S
        os.utime(file, (at, at))


def commits_in(root: Path) -> int:
    return len(list((root / "_delta_log").glob("*.json")))


def test_the_log_is_shortened_and_still_says_what_is_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_MAINTAIN_EVERY", 10)
    stream = Stream()
    stream.add(75)
    fill(tmp_path, stream, 0, 39)
    age(tmp_path)
    fill(tmp_path, stream, 39, 36)
    assert commits_in(tmp_path) < 50
    assert not (tmp_path / "_delta_log" / f"{5:020d}.json").exists()
    state = load_state(tmp_path)
    assert [(each.rows, each.upto_n) for each in state.ranges["orders"]] == [(75, 75)]
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound
    assert len(list((tmp_path / "_ranges").iterdir())) == 2


@pytest.mark.parametrize("is_kept", [True, False], ids=["that are kept", "that are deleted"])
def test_who_looks_for_ranges_while_they_are_written_down_and_the_log_is_shortened_finds_them(
    is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_MAINTAIN_EVERY", 10)
    stream = Stream()
    stream.add(15)
    fill(tmp_path, stream, 0, 15)
    reader, run = ArchiveTable.of(tmp_path), ArchiveTable.of(tmp_path)
    look, looks = reader._noted_versions, []

    def look_before() -> list[int]:
        found = look()
        looks.append(found)
        if len(looks) == 1:
            [file] = (tmp_path / "_ranges").iterdir()
            content = file.read_bytes()
            monkeypatch.setattr(table, "_MAINTAIN_EVERY", 0)
            for _ in range(2):  # as two processes may do
                run.maintain(run.load())
                age(tmp_path)
            run.maintain(run.load())
            assert commits_in(tmp_path) < 3
            if is_kept:
                file.write_bytes(content)
        return found

    monkeypatch.setattr(reader, "_noted_versions", look_before)
    [found] = reader.load().ranges["orders"]
    assert (found.rows, len(looks)) == (15, 2)


def test_killed_while_the_log_is_shortened_nothing_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_MAINTAIN_EVERY", 10)
    stream = Stream()
    stream.add(80)
    done = 0
    for at in ("ranges noted", "shortened", "checkpointed", "nothing"):
        archiver = opened(tmp_path)
        archiver.step = _crash_at(at)
        age(tmp_path) if done else None
        with_crash = 0
        for n in range(done, done + 20):
            try:
                archive(archiver, stream, n, n + 1)
            except Crash:
                with_crash += 1
                archiver = opened(tmp_path, _crash_at(at))
                assert archived(tmp_path) == stream.entries[: n + 1]
        done += 20
        assert archived(tmp_path) == stream.entries[:done]
        assert with_crash or at == "nothing"
        assert verify(tmp_path).is_sound
    assert archived(tmp_path) == stream.entries


def _crash_at(wanted: str):  # type: ignore[no-untyped-def]
    def step(name: str) -> None:
        if name == wanted:
            raise Crash(name)

    return step


def test_a_run_merges_small_files_when_they_are_many_and_when_their_day_is_over(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(70, every_ms=1_300_000)  # 66 a day
    archiver = opened(tmp_path)
    sizes = []
    for n in range(70):
        archive(archiver, stream, n, n + 1)
        SmallFiles(archiver.table, state=archiver.state).run_if_it_pays()
        sizes.append(len(archiver.state.files))
    assert max(sizes) == 63  # the 64th is one too many
    assert [entry.rows for entry in files_of(tmp_path)] == [67, 1, 1, 1]
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound


def test_a_run_that_is_asked_to_stop_begins_no_further_merge(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(40, every_ms=6 * 3_600_000)  # ten days
    fill(tmp_path, stream, 0, 40)
    steps: list[str] = []
    run = ArchiveRun(tmp_path, "orders", step=steps.append, is_stopping=lambda: "committed" in steps)
    archive_table = ArchiveTable.of(tmp_path)
    run.small_files(archive_table, archive_table.load()).run_if_it_pays()  # the nine days that are over
    assert steps == ["written", "placed", "committed"]
    assert len(files_of(tmp_path)) == 37
    assert archived(tmp_path) == stream.entries


def test_a_run_leaves_merges_that_would_delay_its_next_batch_for_later(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(40, every_ms=6 * 3_600_000)
    fill(tmp_path, stream, 0, 40)
    archive_table = ArchiveTable.of(tmp_path)
    small = SmallFiles(archive_table, state=archive_table.load(), most_s=0)
    left = []
    for _ in range(10):
        small.run_if_it_pays()
        left.append(len(files_of(tmp_path)))
    assert left == [37, 34, 31, 28, 25, 22, 19, 16, 13, 13]
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound


def test_replaced_files_are_kept_for_the_grace_also_by_a_run(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(9)
    fill(tmp_path, stream, 0, 3)
    for grace_s in (90_000, -1):
        with pytest.raises(ConfigurationError, match="between 0s and 24h"):
            compact(tmp_path, grace_s=grace_s)
        with pytest.raises(ConfigurationError, match="between 0s and 24h"):
            ArchiveRun(tmp_path, "orders", grace_s=grace_s).check()
    replaced = [tmp_path / entry.path for entry in files_of(tmp_path)]
    compact(tmp_path, grace_s=86_400)
    archive_table = ArchiveTable.of(tmp_path)
    for grace_s, are_kept in ((86_400, True), (0, False)):
        small = SmallFiles(archive_table, grace_s=grace_s, state=archive_table.load())
        small.run()
        assert all(file.exists() for file in replaced) == are_kept


def test_of_two_compactions_one_is_refused(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(6)
    fill(tmp_path, stream, 0, 6)
    first, second = (SmallFiles(table) for table in (ArchiveTable.of(tmp_path), ArchiveTable.of(tmp_path)))
    for each in (first, second):
        each.table.follow(each.state)
    # As if the lock were not there, which is so in an object store.
    second.step = lambda name: first._merge(files_of(tmp_path)) if name == "written" else None
    with pytest.raises(ArchiveConflict, match="replaced the same files"):
        second._merge(files_of(tmp_path))
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound
    with Process([sys.executable, "-c", _HOLD, str(tmp_path)], tmp_path, {"PYTHONPATH": PYTHONPATH}) as other:
        other.wait_for_line("held")
        with pytest.raises(ArchiveConflict, match="another compaction is running"):
            compact(tmp_path)
        other.kill()
    with ArchiveLock.held(Location.of(tmp_path), "compact"):
        pass


_HOLD = """
import signal, sys
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.lake.files import Location
ArchiveLock.take(Location.of(sys.argv[1]), "compact")
print("held", flush=True)
signal.pause()
"""


def test_every_reader_sees_each_row_once_at_any_moment(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(120)
    fill(tmp_path, stream, 0, 20)
    is_over = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not is_over.is_set():
            found = DeltaTable(tmp_path).to_pyarrow_table(columns=["id"])["id"].to_pylist()
            if max(Counter(found).values()) > 1 or sorted(found) != sorted(e for e, _ in stream.entries[: len(found)]):
                wrong.append(found)

    reader = start(read)
    try:
        for first in range(20, 120, 20):
            fill(tmp_path, stream, first, 20)
            compact(tmp_path)
    finally:
        is_over.set()
    join(reader)
    assert not wrong
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == sorted(e for e, _ in stream.entries)


COMPACT = """
import json, sys
from penstock.spark.archive import compact
from penstock.spark.lake.files import Location
def step(name):
    print("step", name, flush=True)
print("ready", flush=True)
compact(Location.of(sys.argv[1], json.loads(sys.argv[2])), grace_s=0, step=step)
print("done", flush=True)
"""


@pytest.mark.slow
def test_compaction_and_vacuum_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(400, every_ms=3_600_000)  # 17 days
    root = tmp_path / "cold"
    at = 0
    for number, line in enumerate(["ready", "step written", "step placed", "step committed", *["step vacuum"] * 4]):
        fill(root, stream, at, 40)
        at += 40
        with Process([sys.executable, "-c", COMPACT, str(root), "{}"], tmp_path, {"PYTHONPATH": PYTHONPATH}) as process:
            process.wait_for_line(line)
            if number > 3:
                threading.Event().wait(0.01 * (number - 4))  # somewhere in the vacuum, which says nothing
            process.kill()
        assert archived(root) == stream.entries[:at], line
        found = DeltaTable(root).to_pyarrow_table()["id"].to_pylist()
        assert sorted(found) == sorted(entry_id for entry_id, _ in stream.entries[:at]), line
    compact(root, grace_s=0)
    report = verify(root, rows=True)
    assert report.is_sound, report.findings
    assert {file.name for file in root.glob("stream=*/day=*/*")} == {Path(e.path).name for e in files_of(root)}


def test_a_commit_and_a_checkpoint_survive_a_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_MAINTAIN_EVERY", 3)
    synced: list[str] = []
    sync = files.sync
    monkeypatch.setattr(files, "sync", lambda place: synced.append(place.name) or sync(place))  # type: ignore[func-returns-value]
    stream = Stream()
    stream.add(3)
    fill(tmp_path, stream, 0, 3)
    log = [f"{version:020d}.json" for version in range(4)]
    assert [name for name in synced if name in log] == log
    assert synced[-4:] == [f"{3:020d}.checkpoint.parquet", "_last_checkpoint", tmp_path.name, "_delta_log"]
    synced.clear()
    opened(tmp_path)  # the run before may have been killed before it synced
    assert {f"{3:020d}.json", *(Path(e.path).name for e in files_of(tmp_path)[-1:])} <= {*synced}


def test_a_commit_of_another_process_that_was_killed_before_it_synced_is_synced_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.add(3)
    archiver = opened(tmp_path)
    for n in range(2):
        archive(archiver, stream, n, n + 1)
    with monkeypatch.context() as killed:
        killed.setattr(files.LocalStore, "sync", lambda *_: None)
        assert compact(tmp_path).made == 1
    synced: list[str] = []
    sync = files.sync
    monkeypatch.setattr(files, "sync", lambda place: synced.append(place.name) or sync(place))  # type: ignore[func-returns-value]
    archive(archiver, stream, 2, 3)
    merged = Path(files_of(tmp_path)[0].path).name
    assert {merged, f"{3:020d}.json", f"{4:020d}.json"} <= {*synced}
    assert f"{2:020d}.json" not in synced  # of its own, which it has synced


def test_who_opens_the_table_by_the_checkpoint_before_still_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_MAINTAIN_EVERY", 10)
    stream = Stream()
    stream.add(20)
    fill(tmp_path, stream, 0, 19)
    reader = DeltaTable(tmp_path, version=15)
    age(tmp_path)
    fill(tmp_path, stream, 19, 1)  # there is a new checkpoint now
    assert DeltaTable(tmp_path, version=15).to_pyarrow_table().num_rows == 15
    reader.update_incremental()
    assert reader.version() == 20


def test_a_compaction_beside_one_in_the_same_process_is_refused(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(5)
    fill(tmp_path, stream, 0, 5)

    def beside(name: str) -> None:
        if name == "placed":
            with pytest.raises(ArchiveConflict, match="another compaction is running"):
                compact(tmp_path)

    compact(tmp_path, grace_s=0, step=beside)
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound


def test_what_a_run_of_this_process_is_about_to_commit_is_not_taken_for_left_behind(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(10)
    archive(opened(tmp_path), stream, 0, 5)
    archive(opened(tmp_path, lambda name: opened(tmp_path) if name == "placed" else None), stream, 5, 10)  # type: ignore[func-returns-value, arg-type, return-value]
    assert archived(tmp_path) == stream.entries
    assert verify(tmp_path, rows=True).is_sound


def test_of_two_compactions_in_a_store_without_locks_none_replaces_what_the_other_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.add(8, every_ms=6 * 3_600_000)  # two days
    fill(tmp_path, stream, 0, 8)
    first, second = (Compaction(ArchiveTable.of(tmp_path)) for _ in range(2))
    for each in (first, second):
        each.table.follow(each.state)
    one, two = first.plan()
    first._merge(one)
    second.table.follow(second.state)
    second._merge(two)
    with pytest.raises(ArchiveConflict, match="replaced the same files"):
        first._merge(two)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == sorted(e for e, _ in stream.entries)


def test_replaced_files_that_the_log_has_forgotten_are_no_damage_and_deleted_by_the_next_compaction(
    tmp_path: Path,
) -> None:
    stream = Stream()
    stream.add(9)
    fill(tmp_path, stream, 0, 3)
    forgotten = [tmp_path / entry.path for entry in files_of(tmp_path)]
    copies = [file.rename(file.with_name(file.name.replace(".parquet", "0.parquet"))) for file in forgotten]
    for copy, file in zip(copies, forgotten, strict=True):
        file.write_bytes(copy.read_bytes())
    assert {finding.what for finding in verify(tmp_path).findings} == {"unknown file"}
    for copy in copies:
        os.utime(copy, (_OLD_S, _OLD_S))
    assert verify(tmp_path).is_sound
    assert compact(tmp_path).cleaned == 3
    assert not any(copy.exists() for copy in copies)
    assert archived(tmp_path) == stream.entries[:3]


def test_a_reader_of_a_file_that_was_replaced_keeps_it_when_a_killed_run_is_cleaned_up(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(3)
    fill(tmp_path, stream, 0, 2)
    with pytest.raises(Crash):
        archive(opened(tmp_path, _crash_at("committed")), stream, 2, 3)  # what it staged is still there
    before = files_of(tmp_path)
    compact(tmp_path)
    opened(tmp_path)
    assert all((tmp_path / entry.path).exists() for entry in before)
    assert not list((tmp_path / "_staging").rglob("*.parquet"))


def test_a_run_goes_on_when_its_small_files_cannot_be_merged_and_tries_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream()
    stream.add(64)
    fill(tmp_path, stream, 0, 64)
    now_s, archive_table = 1_000.0, ArchiveTable.of(tmp_path)
    small = ArchiveRun(tmp_path, "orders").small_files(archive_table, archive_table.load())
    small.now_s = lambda: now_s

    def refuse(*_: object) -> None:
        raise StoreFailed("503 Slow Down")

    with monkeypatch.context() as outage:
        outage.setattr(archive_table, "place", refuse)
        for after_s in (0, 59, 1, 119, 1):
            now_s += after_s
            small.run_if_it_pays()
        small._failures, now_s = 2_000, now_s + 240
        small.run_if_it_pays()
    assert re.findall(r"trying again in (\d+) s", caplog.text) == ["60", "120", "240", "3600"]
    assert len(files_of(tmp_path)) == 64
    now_s += 3_600
    small.run_if_it_pays()
    assert len(files_of(tmp_path)) == 1
    assert archived(tmp_path) == stream.entries


def test_a_damaged_file_keeps_no_others_from_being_merged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream()
    stream.add(20, every_ms=3 * 3_600_000)  # eight a day
    fill(tmp_path, stream, 0, 20)
    (tmp_path / files_of(tmp_path)[2].path).write_bytes(b"damaged")
    now_s, archive_table = 1_000.0, ArchiveTable.of(tmp_path)
    small = ArchiveRun(tmp_path, "orders").small_files(archive_table, archive_table.load())
    small.now_s = lambda: now_s
    for _ in range(3):
        small.run_if_it_pays()
        now_s += 60
    assert caplog.text.count("cannot merge") == 1
    assert [entry.rows for entry in files_of(tmp_path)] == [2, 1, 5, 8, 1, 1, 1, 1]


def test_files_that_together_are_not_what_the_log_says_keep_no_others_from_being_merged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream()
    stream.add(20, every_ms=3 * 3_600_000)  # eight a day
    fill(tmp_path, stream, 0, 20)
    now_s, archive_table = 1_000.0, ArchiveTable.of(tmp_path)
    small = ArchiveRun(tmp_path, "orders").small_files(archive_table, archive_table.load())
    small.now_s = lambda: now_s
    wrong = files_of(tmp_path)[8]
    small.state.files[wrong.path] = replace(wrong, rows=2)
    for _ in range(3):
        small.run_if_it_pays()
        now_s += 60
    assert caplog.text.count("cannot merge") == 1
    assert [entry.rows for entry in files_of(tmp_path)] == [8, *[1] * 12]


def test_a_verification_beside_a_run_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.add(30)
    archiver = opened(tmp_path)
    archive(archiver, stream, 0, 10)
    archive(archiver, stream, 10, 15)
    check = verification._file

    def meanwhile(*args: Any, **settings: Any) -> Any:
        if archiver.state.version == 2:
            archive(archiver, stream, 15, 30)
            compact(tmp_path, grace_s=0)
        return check(*args, **settings)

    monkeypatch.setattr(verification, "_file", meanwhile)
    monkeypatch.setattr(verification, "_THREADS", 1)
    assert verify(tmp_path).findings == ()
