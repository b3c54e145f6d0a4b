"""What an archive holds, told from its manifest alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.spark.archive.errors import ArchiveMissing
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import State


@dataclass(frozen=True)
class StreamStatus:
    """One stream of an archive."""

    stream: str
    rows: int
    files: int
    bytes: int
    first: str | None
    last: str | None
    upto: str  # archived, though the last entries may have been deleted before
    days: int
    lost: int | None  # None = unknown


def is_archive(root: str | Path) -> bool:
    """Tell whether anything was ever archived there."""
    return ManifestLog(Layout.of(root)).exists()


def load_state(root: str | Path) -> State:
    """Return what the manifest says; raise ArchiveMissing if there is none."""
    log = ManifestLog(Layout.of(root))
    if not log.exists():
        raise ArchiveMissing(f"there is no archive at {log.layout.root}: {log.layout.manifest} does not exist")
    return log.load()


def status(root: str | Path) -> list[StreamStatus]:
    """Return what is archived of each stream."""
    state = load_state(root)
    return [_of(state, stream) for stream in state.streams]


def _of(state: State, stream: str) -> StreamStatus:
    files, ranges = state.files_of(stream), state.ranges[stream]
    losses = [each.lost for each in ranges]
    return StreamStatus(
        stream=stream,
        rows=sum(entry.rows for entry in files),
        files=len(files),
        bytes=sum(entry.bytes for entry in files),
        first=files[0].first if files else None,
        last=files[-1].last if files else None,
        upto=ranges[-1].upto,
        days=len({entry.date for entry in files}),
        lost=None if None in losses else sum(lost or 0 for lost in losses),
    )
