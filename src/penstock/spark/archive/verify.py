"""Compares an archive with its manifest: every file, every byte, every range of ids."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock import ids
from penstock.spark.archive.checkpoint import last_committed
from penstock.spark.archive.errors import ArchiveDamaged, ArchiveMissing
from penstock.spark.archive.file_check import why_changed
from penstock.spark.archive.file_writer import describe
from penstock.spark.archive.layout import Layout, inside
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import Commit, FileEntry, RangeEntry, State

What: TypeAlias = Literal[
    "missing file", "changed file", "wrong rows", "unknown file", "missing range", "overlapping range", "manifest"
]
_THREADS = 2


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    what: What
    where: str
    text: str

    def __str__(self) -> str:
        """Tell it in one line."""
        return f"{self.what}: {self.where}: {self.text}"


@dataclass(frozen=True)
class Report:
    """What verification found."""

    findings: tuple[Finding, ...]
    commits: int
    files: int
    rows: int
    bytes: int
    known_losses: tuple[str, ...] = ()  # accepted when they happened

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(root: str | Path, *, rows: bool = False) -> Report:
    """Look at everything that the manifest speaks of, and for what it does not speak of.

    With `rows` the files are also decoded and their rows compared; without it their bytes are, which finds any change
    that was made after the commit.
    """
    layout = Layout.of(root)
    log = ManifestLog(layout)
    if not log.exists():
        raise ArchiveMissing(f"there is no archive at {layout.root}: {layout.manifest} does not exist")
    findings: list[Finding] = []
    state, replaced = State(), set[str]()
    commits = 0
    for commit in _commits(log, findings):
        commits += 1
        state.apply(commit)
        replaced.update(commit.remove)
    findings += _files(layout, state, rows=rows)
    findings += _unknown(layout, state, replaced)
    for stream in sorted({*state.ranges, *(entry.stream for entry in state.files.values())}):
        findings += _ranges(stream, state.ranges.get(stream, []), state.files_of(stream))
    findings += _beyond(layout, state)
    return Report(
        tuple(findings),
        commits,
        len(state.files),
        sum(entry.rows for entry in state.files.values()),
        sum(entry.bytes for entry in state.files.values()),
        tuple(_losses(state)),
    )


def _commits(log: ManifestLog, findings: list[Finding]) -> Iterator[Commit]:
    """Return the commits that can be read; note the others."""
    expected, check = 1, ""
    for number in log.numbers():
        lost = range(expected, number)
        findings += [Finding("manifest", str(log.path(each)), "this commit is missing") for each in lost]
        is_next, expected = number == expected, number + 1
        try:
            commit = log.read(number)
        except (ArchiveDamaged, OSError) as error:
            findings.append(Finding("manifest", str(log.path(number)), str(error)))
            check = ""
            continue
        if is_next and check and commit.prev != check:
            findings.append(Finding("manifest", str(log.path(number)), "it does not follow the commit before it"))
        check = commit.check
        yield commit


def _files(layout: Layout, state: State, *, rows: bool) -> list[Finding]:
    entries = [state.files[path] for path in sorted(state.files)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda entry: _file(layout.root, entry, rows=rows), entries)
        return [finding for finding in found if finding is not None]


def _file(root: Path, entry: FileEntry, *, rows: bool) -> Finding | None:
    file = root / entry.path
    told = f"{entry.rows:,} entries from {entry.first} to {entry.last} of stream {entry.stream!r}"
    try:
        why = why_changed(inside(root, entry.path), entry.bytes, entry.sha256)
        if why is not None:
            return Finding("changed file", str(file), f"{why}; it held {told}")
        if rows and describe(file, entry.path, entry.stream, entry.date) != entry:
            return Finding("wrong rows", str(file), f"its rows are not {told}")
    except FileNotFoundError:
        return Finding("missing file", str(file), f"it held {told}")
    except (OSError, pa.ArrowException, ArchiveDamaged) as error:
        return Finding("changed file", str(file), f"it cannot be read ({error}); it held {told}")
    return None


def _unknown(layout: Layout, state: State, replaced: set[str]) -> Iterator[Finding]:
    for file in sorted(layout.root.glob("stream=*/date=*/*")):
        path = file.relative_to(layout.root).as_posix()
        if path in state.files or path in replaced:  # a replaced file stays until it is cleaned away
            continue
        yield Finding("unknown file", str(file), "no commit speaks of it; a run that was killed may have left it")


def _ranges(stream: str, ranges: list[RangeEntry], files: list[FileEntry]) -> Iterator[Finding]:
    where = f"stream {stream!r}"
    for before, each in itertools.pairwise(ranges):
        gap = _joint(before, each)
        if gap is not None:
            yield Finding(gap[0], where, gap[1])
    for left, right in itertools.pairwise(files):
        if ids.parse(right.first) <= ids.parse(left.last):
            yield Finding("overlapping range", where, f"{left.path} and {right.path} hold the same ids")
    yield from _counts(where, ranges, files)


def _counts(where: str, ranges: list[RangeEntry], files: list[FileEntry]) -> Iterator[Finding]:
    """Compare how many entries each range was given with how many its files hold."""
    ends = [ids.parse(each.upto) for each in ranges]
    held = [0] * len(ranges)
    is_bridged = [False] * len(ranges)  # to the next one, by a compacted file: the two are counted together
    for entry in files:
        first, last = bisect_left(ends, ids.parse(entry.first)), bisect_left(ends, ids.parse(entry.last))
        if last == len(ends) or ids.parse(entry.first) <= ids.parse(ranges[first].after):
            yield Finding("manifest", where, f"{entry.path} holds ids outside the archived ranges")
            continue
        held[first] += entry.rows
        is_bridged[first:last] = [True] * (last - first)
    start = 0
    for number in range(len(ranges)):
        if is_bridged[number]:
            continue
        wanted, found = sum(each.rows for each in ranges[start : number + 1]), sum(held[start : number + 1])
        if wanted != found:
            text = f"behind {ranges[start].after} up to {ranges[number].upto} {wanted:,} entries were archived, "
            what: What = "missing range" if found < wanted else "overlapping range"
            yield Finding(what, where, f"{text}{found:,} are in the manifest")
        start = number + 1


def _joint(before: RangeEntry, each: RangeEntry) -> tuple[What, str] | None:
    ends, begins = ids.parse(before.upto), ids.parse(each.after)
    if begins < ends:
        return "overlapping range", f"ids behind {each.after} up to {before.upto} are archived twice"
    is_known = each.lost is None or each.lost > 0
    is_same = before.upto_n is not None and before.upto_n == each.after_n
    if begins > ends and not is_known and not is_same:
        return "missing range", f"ids behind {before.upto} up to {each.after} are not archived"
    return None


def _beyond(layout: Layout, state: State) -> Iterator[Finding]:
    """Yield where Spark believes to be further than the manifest: its last commits are gone."""
    try:
        committed = last_committed(layout.checkpoint)
    except ArchiveDamaged:
        return  # Spark will say so itself
    for stream, at in sorted((committed.positions() if committed else {}).items()):
        end = state.end(stream)
        if at.id != ids.ZERO and ids.parse(at.id) > ids.parse(end.id if end else ids.ZERO):
            if at.rank is not None and at.rank == (end.rank if end else 0):
                continue  # further, but past no entry
            text = f"ids behind {end.id if end else ids.ZERO} up to {at.id} are in no manifest"
            yield Finding("missing range", f"stream {stream!r}", f"{text}, though Spark has committed them")


def _losses(state: State) -> Iterator[str]:
    for stream in state.streams:
        for each in state.ranges[stream]:
            if each.lost is None or each.lost:
                number = "an unknown number of" if each.lost is None else f"{each.lost:,}"
                yield f"stream {stream!r}: {number} entries before {each.after} were gone before they could be archived"
