"""Compares an archive with the log of its table: every file, every byte, every range of ids."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock import ids
from penstock.spark.archive.file_reader import read_rows, why_changed
from penstock.spark.archive.file_writer import Content
from penstock.spark.archive.run import last_committed
from penstock.spark.archive.state import ArchiveDamaged, ArchiveMissing, FileEntry, RangeEntry, State
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location, StoredFile
from penstock.spark.source.offsets import Offsets

What: TypeAlias = Literal[
    "missing file", "changed file", "wrong rows", "unknown file", "missing range", "overlapping range", "log"
]
_THREADS = 2


@dataclass(frozen=True)
class ArchiveFinding:
    """Something that is not as it should be."""

    what: What
    where: str
    text: str

    def __str__(self) -> str:
        """Describe it in one line."""
        return f"{self.what}: {self.where}: {self.text}"


@dataclass(frozen=True)
class VerificationReport:
    """What verification found."""

    findings: tuple[ArchiveFinding, ...]
    commits: int
    files: int
    rows: int
    bytes: int
    known_losses: tuple[str, ...] = ()  # accepted when they happened

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(
    root: str | Path | Location, *, rows: bool = False, storage_options: Mapping[str, str] | None = None
) -> VerificationReport:
    """Look at everything that the table refers to, and for files that it does not refer to.

    With `rows` the files are also decoded and their rows compared; without it their bytes are, which finds any change
    that was made after the commit.
    """
    table = ArchiveTable.of(root, storage_options)
    state = State()
    # Both before the log is read: what a run that is at work had put there by then, the log knows.
    stored, committed = table.store.walk(""), _committed(table.location)
    try:
        table.follow(state)
    except ArchiveMissing:
        raise
    except ArchiveDamaged as error:
        return VerificationReport((ArchiveFinding("log", str(table.location), str(error)),), 0, 0, 0, 0)
    findings = _files(table, state, rows=rows)
    findings += _unknown(table, state, stored)
    by_stream = state.files_by_stream()
    for stream in sorted(by_stream):
        findings += _ranges(stream, state.ranges.get(stream, []), by_stream[stream])
    findings += _beyond(committed, state)
    return VerificationReport(
        tuple(findings),
        state.version,  # the first one makes the table
        len(state.files),
        sum(entry.rows for entry in state.files.values()),
        sum(entry.bytes for entry in state.files.values()),
        tuple(_losses(state)),
    )


def _files(table: ArchiveTable, state: State, *, rows: bool) -> list[ArchiveFinding]:
    entries = [state.files[path] for path in sorted(state.files)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = dict(
            zip(sorted(state.files), pool.map(lambda entry: _file(table, entry, rows=rows), entries), strict=True)
        )
    wrong = {path: finding for path, finding in found.items() if finding is not None}
    if not wrong:
        return []
    now = table.load().files  # a compaction may have replaced some, and removed them
    return [finding for path, finding in wrong.items() if path in now]


def _file(table: ArchiveTable, entry: FileEntry, *, rows: bool) -> ArchiveFinding | None:
    where = f"{table.location}/{entry.path}"
    described = f"{entry.rows:,} entries from {entry.first} to {entry.last} of stream {entry.stream!r}"
    try:
        why = why_changed(table, entry.path, entry.bytes, entry.sha256)
        if why is not None:
            return ArchiveFinding("changed file", where, f"{why}; it held {described}")
        if rows:
            found = Content.of(read_rows(table, entry))
            if (found.rows, found.first, found.last) != (entry.rows, entry.first, entry.last):
                return ArchiveFinding("wrong rows", where, f"its rows differ from the recorded {described}")
    except FileNotFoundError:
        return ArchiveFinding("missing file", where, f"it held {described}")
    except (OSError, pa.ArrowException, ArchiveDamaged) as error:
        return ArchiveFinding("changed file", where, f"it cannot be read ({error}); it held {described}")
    return None


def _unknown(table: ArchiveTable, state: State, stored: Sequence[StoredFile]) -> Iterator[ArchiveFinding]:
    """Yield files that are no part of the table, were not replaced lately, and belong to no run that is at work."""
    unknown = table.unknown_files(stored, state)
    for file in (each for each in unknown if not table.is_forgotten(each, state)):  # those a compaction deletes
        text = "no commit refers to it; a killed run may have left it"
        yield ArchiveFinding("unknown file", f"{table.location}/{file.path}", text)


def _ranges(stream: str, ranges: list[RangeEntry], files: list[FileEntry]) -> Iterator[ArchiveFinding]:
    where = f"stream {stream!r}"
    for before, each in itertools.pairwise(ranges):
        gap = _joint(before, each)
        if gap is not None:
            yield ArchiveFinding(gap[0], where, gap[1])
    for left, right in itertools.pairwise(files):
        if ids.parse(right.first) <= ids.parse(left.last):
            yield ArchiveFinding("overlapping range", where, f"{left.path} and {right.path} hold the same ids")
    yield from _counts(where, ranges, files)


def _counts(where: str, ranges: list[RangeEntry], files: list[FileEntry]) -> Iterator[ArchiveFinding]:
    """Compare how many entries each range was given with how many its files hold."""
    ends = [ids.parse(each.upto) for each in ranges]
    held = [0] * len(ranges)
    is_bridged = [False] * len(ranges)  # to the next one, by a compacted file: the two are counted together
    for entry in files:
        first, last = bisect_left(ends, ids.parse(entry.first)), bisect_left(ends, ids.parse(entry.last))
        if last == len(ends) or ids.parse(entry.first) <= ids.parse(ranges[first].after):
            yield ArchiveFinding("log", where, f"{entry.path} contains ids outside the archived ranges")
            continue
        held[first] += entry.rows
        is_bridged[first:last] = [True] * (last - first)
    start = 0
    for number in range(len(ranges)):
        if is_bridged[number]:
            continue
        wanted, found = sum(each.rows for each in ranges[start : number + 1]), sum(held[start : number + 1])
        if wanted != found:
            text = f"after {ranges[start].after} up to {ranges[number].upto}, {wanted:,} entries were archived, but "
            what: What = "missing range" if found < wanted else "overlapping range"
            yield ArchiveFinding(what, where, f"{text}{found:,} are in the table")
        start = number + 1


def _joint(before: RangeEntry, each: RangeEntry) -> tuple[What, str] | None:
    ends, begins = ids.parse(before.upto), ids.parse(each.after)
    if begins < ends:
        return "overlapping range", f"ids after {each.after} up to {before.upto} are archived twice"
    is_known = each.lost is None or each.lost > 0
    is_same = before.upto_n is not None and before.upto_n == each.after_n
    if begins > ends and not is_known and not is_same:
        return "missing range", f"ids after {before.upto} up to {each.after} are not archived"
    return None


def _committed(location: Location) -> Offsets | None:
    with suppress(ArchiveDamaged):  # Spark will say so itself
        return last_committed(location)
    return None


def _beyond(committed: Offsets | None, state: State) -> Iterator[ArchiveFinding]:
    """Yield where Spark believes to be further than the table: its last commits are gone."""
    for stream, at in sorted((committed.positions() if committed else {}).items()):
        end = state.end(stream)
        if at.id != ids.ZERO and ids.parse(at.id) > ids.parse(end.id if end else ids.ZERO):
            if at.rank is not None and at.rank == (end.rank if end else 0):
                continue  # further, but past no entry
            text = f"ids after {end.id if end else ids.ZERO} up to {at.id} are not in any commit of the table"
            yield ArchiveFinding("missing range", f"stream {stream!r}", f"{text}, though Spark has committed them")


def _losses(state: State) -> Iterator[str]:
    for stream in state.streams:
        for each in state.ranges[stream]:
            if each.lost is None or each.lost:
                number = "an unknown number of" if each.lost is None else f"{each.lost:,}"
                yield (
                    f"stream {stream!r}: {number} entries before {each.after} were lost before they could be archived"
                )
