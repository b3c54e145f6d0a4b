"""Verification finds whatever was done to an archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.archive import status, verify
from penstock.spark.archive.compact import compact
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import Commit
from tests.spark.archive.streams import Stream, archive, opened


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
    return [root / entry.path for entry in ManifestLog(Layout.of(root)).load().files_of("orders")]


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


def test_a_missing_range_is_found_though_its_files_are_gone_as_well(root: Path) -> None:
    log = ManifestLog(Layout.of(root))
    log.path(2).unlink()
    files_of_2 = [file for file in root.glob("stream=*/date=*/*") if str(file.name).startswith("1700006400015")]
    assert len(files_of_2) == 1
    files_of_2[0].unlink()
    assert found(root) == [("manifest", str(log.path(2))), ("missing range", "stream 'orders'")]
    assert "1700006400014-2" in str(verify(root).findings[1])


def test_a_range_that_lost_its_file_in_the_manifest_is_found(root: Path) -> None:
    log = ManifestLog(Layout.of(root))
    commit = log.read(4)
    log.path(4).unlink()
    log.commit(replace(commit, add=()))  # with a checksum that fits
    assert found(root) == [("unknown file", str(root / commit.add[0].path)), ("missing range", "stream 'orders'")]


def test_commits_that_are_gone_from_the_end_are_found_by_the_checkpoint(root: Path) -> None:
    log = ManifestLog(Layout.of(root))
    last = log.read(4)
    offset = {"v": 1, "s": {"orders": {"id": last.ranges[0].upto, "n": 60, "from": "0-0", "from_n": 0}}}
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
        (root / "_checkpoint" / folder).mkdir(parents=True)
        (root / "_checkpoint" / folder / "3").write_text(text)
    assert verify(root).is_sound
    log.path(4).unlink()
    (root / last.add[0].path).unlink()
    assert found(root) == [("missing range", "stream 'orders'")]


def test_overlapping_ranges_are_found(root: Path) -> None:
    log = ManifestLog(Layout.of(root))
    state, last = log.load(), log.read(4)
    log.commit(Commit(5, "append", 0, last.ranges, prev=state.check))
    assert ("overlapping range", "stream 'orders'") in found(root)


def test_a_file_that_nobody_knows_is_found(root: Path) -> None:
    stranger = files(root)[0].with_name("5-0_6-0.parquet")
    stranger.write_bytes(b"x")
    assert found(root) == [("unknown file", str(stranger))]


def test_a_changed_commit_is_found(root: Path) -> None:
    file = ManifestLog(Layout.of(root)).path(3)
    file.write_bytes(file.read_bytes().replace(b"append", b"oppend"))
    assert ("manifest", str(file)) in found(root)


def test_wrong_rows_under_a_right_checksum_are_found_when_rows_are_compared(root: Path) -> None:
    log = ManifestLog(Layout.of(root))
    commit = log.read(4)
    log.path(4).unlink()
    log.commit(replace(commit, add=(replace(commit.add[0], row_sum="0" * 64),)))
    assert found(root) == []
    assert found(root, rows=True) == [("wrong rows", str(root / commit.add[0].path))]


def test_a_compacted_archive_is_sound(root: Path) -> None:
    compact(root)
    assert verify(root, rows=True).is_sound
    [whole] = files(root)
    whole.unlink()
    assert found(root) == [("missing file", str(whole))]


def test_there_must_be_an_archive(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no archive"):
        verify(tmp_path / "nowhere")
