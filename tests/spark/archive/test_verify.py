"""Verification finds whatever was done to an archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.archive import status, verify
from penstock.spark.archive.compact import compact
from penstock.spark.archive.state import FileEntry, RangeEntry
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.delta import DeltaLog
from penstock.spark.lake.files import Location
from tests.spark.archive.streams import Stream, archive, files_of, opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An archive of four batches of 15."""
    stream = Stream()
    stream.add(60)
    archiver = opened(tmp_path)
    for start in range(0, 60, 15):
        archive(archiver, stream, start, start + 15)
    return tmp_path


def files(root: Path) -> list[Path]:
    return [root / entry.path for entry in files_of(root)]


def found(root: Path, *, rows: bool = False) -> list[tuple[str, str]]:
    return [(finding.what, finding.where) for finding in verify(root, rows=rows).findings]


def test_a_sound_archive_is_called_sound(root: Path) -> None:
    report = verify(root, rows=True)
    assert report.is_sound
    assert (report.commits, report.files, report.rows) == (4, 4, 60)
    [stream] = status(root)
    assert (stream.stream, stream.rows, stream.files, stream.days, stream.lost) == ("orders", 60, 4, 1, 0)


def test_a_removed_file_is_found(root: Path) -> None:
    gone = files(root)[1]
    gone.unlink()
    assert found(root) == [("missing file", str(gone))]


def test_any_flipped_byte_is_found(root: Path) -> None:
    victim = files(root)[2]
    content = victim.read_bytes()
    for place in (0, len(content) // 2, len(content) - 5):
        victim.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert found(root) == [("changed file", str(victim))]
    victim.write_bytes(content[:-1])
    assert found(root) == [("changed file", str(victim))]


def commit_file(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020d}.json"


def changed(root: Path, version: int, old: str, new: str) -> None:
    """Changes a commit as somebody with an editor would."""
    file = commit_file(root, version)
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new))


def ranges_of(root: Path, version: int) -> list[RangeEntry]:
    [commit] = [info for number, info in DeltaLog.open(Location.of(root)).infos(version - 1) if number == version]
    return [RangeEntry(**each) for each in commit["penstock"]["ranges"]]


def test_a_commit_that_is_gone_is_found(root: Path) -> None:
    commit_file(root, 2).unlink()
    assert found(root) == [("log", str(root))]


def test_a_missing_range_is_found_though_its_files_are_gone_as_well(root: Path) -> None:
    [middle] = ranges_of(root, 2)
    gone = [entry for entry in files_of(root) if entry.last == middle.upto]
    assert len(gone) == 1
    log = DeltaLog.open(Location.of(root))
    log.commit([], [gone[0].data_file()])
    changed(root, 2, '"penstock"', '"someone"')
    (root / gone[0].path).unlink()
    assert found(root) == [("missing range", "stream 'orders'")]
    assert "1700006400014-2" in str(verify(root).findings[0])


def test_a_range_that_lost_its_file_in_the_log_is_found(root: Path) -> None:
    last = files_of(root)[-1]
    DeltaLog.open(Location.of(root)).commit([], [last.data_file()])
    assert found(root) == [("missing range", "stream 'orders'")]
    compact(root, grace_s=0)
    assert found(root) == [("missing range", "stream 'orders'")]


def test_commits_that_are_gone_from_the_end_are_found_by_the_checkpoint(root: Path) -> None:
    last, [range_] = files_of(root)[-1], ranges_of(root, 4)
    offset = {"v": 1, "s": {"orders": {"id": range_.upto, "n": 60, "from": "0-0", "from_n": 0}}}
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
        (root / "_checkpoint" / folder).mkdir(parents=True)
        (root / "_checkpoint" / folder / "3").write_text(text)
    assert verify(root).is_sound
    commit_file(root, 4).unlink()
    (root / last.path).unlink()
    assert found(root) == [("missing range", "stream 'orders'")]


def test_overlapping_ranges_are_found(root: Path) -> None:
    table = ArchiveTable.of(root)
    table.append(table.load(), ranges_of(root, 4), {})
    assert ("overlapping range", "stream 'orders'") in found(root)


def test_a_file_that_nobody_knows_is_found(root: Path) -> None:
    stranger = files(root)[0].with_name("5-0_6-0.parquet")
    stranger.write_bytes(b"x")
    assert found(root) == [("unknown file", str(stranger))]


def test_a_changed_commit_is_found(root: Path) -> None:
    changed(root, 3, '"rows":15', '"rows":14')
    assert found(root) == [("overlapping range", "stream 'orders'")]


def test_wrong_rows_under_a_right_checksum_are_found_when_rows_are_compared(root: Path) -> None:
    entry = files_of(root)[3]
    stats = json.dumps({"numRecords": 14, "minValues": {}, "maxValues": {}, "nullCount": {}})
    log = DeltaLog.open(Location.of(root))
    other = renamed(root, entry)
    log.commit([other.data_file(stats)], [entry.data_file()])
    changed(root, 4, '"rows":15', '"rows":14')
    assert found(root) == []
    assert found(root, rows=True) == [("wrong rows", str(root / other.path))]


def renamed(root: Path, entry: FileEntry) -> FileEntry:
    """Gives a file another name; a path cannot be added and removed in one commit."""
    path = entry.path.replace(".parquet", "0.parquet")
    (root / entry.path).rename(root / path)
    return replace(entry, path=path)


def test_a_compacted_archive_is_sound(root: Path) -> None:
    compact(root)
    assert verify(root, rows=True).is_sound
    [whole] = files(root)
    whole.unlink()
    assert found(root) == [("missing file", str(whole))]


def test_there_must_be_an_archive(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no archive"):
        verify(tmp_path / "nowhere")
