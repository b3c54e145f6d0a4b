"""A manifest can be written by anybody who may write to the folder: it leads nobody out of the archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.spark.archive import ArchiveDamaged, compact, verify
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import Commit
from penstock.spark.archive.status import status
from tests.spark.archive.streams import Stream, archive, archived, opened

DAY = "stream=orders/date=2026-11-15"
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
        "stream=orders/../../precious.parquet", "", ".", f"{DAY}/a\0.parquet", "_checkpoint/offsets/0",
    ]  # fmt: skip


def add(root: Path, *, remove: str = "", instead: str = "") -> None:
    """Append a commit as an attacker would: with the right number and checksums."""
    log = ManifestLog(Layout.of(root))
    state = log.load()
    entry = replace(state.files_of("orders")[0], path=instead) if instead else None
    remove_all = (remove,) if remove or entry is None else ()
    log.commit(Commit(state.seq + 1, "compact", 1, add=(entry,) if entry else (), remove=remove_all, prev=state.check))


def test_a_path_that_leads_out_of_the_archive_is_neither_deleted_nor_read(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.parquet"
    precious.write_text("not yours")
    for number, path in enumerate(leads_out(tmp_path)):
        for given in ({"remove": path}, {"instead": path}):
            if given == {"instead": ""}:
                continue
            add(root, **given)
            for use in USES:
                with pytest.raises(ArchiveDamaged, match="no file of an archive"):
                    use(root)
            assert not verify(root).is_sound, (number, given)
            ManifestLog(Layout.of(root)).path(3).unlink()
    assert precious.read_text() == "not yours"
    assert verify(root).is_sound


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    day = next(root.glob("stream=*/date=*"))
    name = next(day.iterdir()).name
    day.rename(elsewhere)
    day.symlink_to(elsewhere)
    add(root, remove=f"{day.relative_to(root)}/{name}")
    with pytest.raises(ArchiveDamaged, match="symbolic link"):
        compact(root, grace_s=0)
    with pytest.raises(ArchiveDamaged, match="symbolic link"):
        list(ColdLog.of(str(root)).pages("orders", "0-0", f"{2**63}-0"))
    assert (elsewhere / name).exists()
    assert any("symbolic link" in str(finding) for finding in verify(root).findings)
