"""A log can be written by anybody who may write to the folder: it leads nobody out of the archive."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.spark.archive import ArchiveDamaged, compact, status, verify
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.lake.delta import DataFile, DeltaLog
from penstock.spark.lake.files import LeadsOut, Location
from tests.spark.archive.streams import Stream, archive, archived, files_of, opened

DAY = "stream=orders/day=2026-11-15"
USES: list[Callable[[Path], object]] = [
    lambda root: compact(root, grace_s=0), status, lambda root: ColdLog.of(str(root)), archived,
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    stream = Stream()
    stream.add(20)
    archiver = opened(root)
    archive(archiver, stream, 0, 10)
    archive(archiver, stream, 10, 20)
    return root


def leads_out(tmp_path: Path) -> list[str]:
    return [
        str(tmp_path / "precious.parquet"), "../precious.parquet", f"{DAY}/../../../precious.parquet",
        "stream=orders/../../precious.parquet", ".", f"{DAY}/a.parquet", "_checkpoint/offsets/0",
    ]  # fmt: skip


def test_a_path_that_leads_out_of_the_archive_is_neither_deleted_nor_read(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.parquet"
    precious.write_text("not yours")
    stats = '{"numRecords": 10}'
    for path in leads_out(tmp_path):
        log = DeltaLog.open(Location.of(root))
        log.commit([DataFile(path, 9, {"stream": "orders", "day": "2026-11-15"}, 10, stats)])
        for use in USES:
            with pytest.raises(ArchiveDamaged, match="not a file of an archive"):
                use(root)
        assert not verify(root).is_sound, path
        (root / "_delta_log" / f"{log.version:020d}.json").unlink()
        log = DeltaLog.open(Location.of(root))
        log.commit([], [DataFile(path, 9, {"stream": "orders", "day": "2026-11-15"})])
        compact(root, grace_s=0)
        assert precious.read_text() == "not yours", path
    assert verify(root).is_sound


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    day = next(root.glob("stream=*/day=*"))
    name = next(day.iterdir()).name
    day.rename(elsewhere)
    day.symlink_to(elsewhere)
    first = files_of(root)[0]
    DeltaLog.open(Location.of(root)).commit([], [first.data_file()])
    with pytest.raises(ArchiveDamaged, match="symbolic link"):
        compact(root, grace_s=0)
    with pytest.raises(ArchiveDamaged, match="symbolic link"):
        list(ColdLog.of(str(root)).pages("orders", "0-0", f"{2**63}-0"))
    assert (elsewhere / name).exists()
    assert any("symbolic link" in str(finding) for finding in verify(root).findings)


@pytest.mark.parametrize("folder", ["_staging", "_ranges"])
def test_folders_beside_the_table_are_no_links_either(root: Path, tmp_path: Path, folder: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    precious = elsewhere / "compact-plan" / "precious.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("not yours")
    shutil.rmtree(root / folder, ignore_errors=True)
    (root / folder).symlink_to(elsewhere)
    with pytest.raises(LeadsOut, match="symbolic link"):
        compact(root, grace_s=0)
    assert precious.read_text() == "not yours"
    assert [path.name for path in elsewhere.iterdir()] == ["compact-plan"], "nothing was written there"


@pytest.mark.parametrize("path", ["{outside}", "../outside", "day=1/../../outside"])
def test_a_path_outside_of_the_folder_is_not_used(tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    store = Location.of(tmp_path / "table").store
    named = path.format(outside=outside)
    for use in (store.read, store.delete, store.info, lambda path: store.write(path, b"ours")):
        with pytest.raises(LeadsOut, match="outside of"):
            use(named)
    assert outside.read_text() == "not yours"


NO_RANGES = {
    "number": 5, "text": "x", "no range": [5], "names": [{"stream": "orders"}], "ids": [{"after": 1, "upto": 2}],
    "types": [{"stream": "orders", "after": "0-0", "upto": "9-0", "rows": "many"}],
}  # fmt: skip


@pytest.mark.parametrize("said", NO_RANGES.values(), ids=NO_RANGES)
def test_a_commit_that_names_no_ranges_is_damage(root: Path, said: object) -> None:
    log = DeltaLog.open(Location.of(root))
    log.commit([], info={"penstock": {"ranges": said}})
    for use in USES:
        with pytest.raises(ArchiveDamaged):
            use(root)
    assert not verify(root).is_sound


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 10_000, b"5", b"{}", b'{"table": "", "ranges": 5}'])
def test_what_somebody_wrote_beside_the_ranges_is_damage_or_nothing(root: Path, content: bytes) -> None:
    (root / "_ranges").mkdir(exist_ok=True)
    (root / "_ranges" / "\N{SUPERSCRIPT TWO}.json").write_bytes(content)
    assert verify(root).is_sound, "it is no number of a commit"
    (root / "_ranges" / f"{1:020d}.json").write_bytes(content)
    for use in USES:
        with suppress(ArchiveDamaged):
            use(root)
    verify(root)
