"""What an archive costs after many commits: `python -m bench.archive_commits --commits 100000`.

Makes two archives, one of 100 commits and one of many, with the code of an archive run, its own merges of files and the
shortening of its log included. Then opens each of them, asks for its status and reads the last whole day, and compares
the times. The commits are those of a run with a batch every ten seconds, of one entry or of `--commit-bytes`. By age
the log is shortened, and the table forgets the files that merges have replaced: files of the log get the age that they
would have, and of the replaced files the table keeps a day of such a run.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import mean, median

from bench.report import table
from penstock import ids
from penstock.spark.archive import status
from penstock.spark.archive import table as archive_table
from penstock.spark.archive.batch import BatchArchiver
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.compact import SmallFiles
from penstock.spark.archive.state import DAY_MS, READ_SCHEMA
from penstock.spark.archive.table import ArchiveTable, load_state
from penstock.spark.source.offsets import BatchRange, Offsets, Position
from penstock.spark.source.rows import RowBuilder

_EVERY_MS = 10_000
_SMALL = 100
_MOST_RATIO = 1.5
_ROUNDS = 7
_STREAM = "orders"
_AGE_EVERY = 10  # commits between two looks at the log
_BEHIND_CHECKPOINT = 10
_ENTRY_BYTES, _LEAST_BYTES = 1_000, 5


def made(root: Path, commits: int, commit_bytes: int) -> list[float]:
    """Makes an archive whose last commit is of now; returns the seconds that each commit took, with its merges."""
    archiver, number, rows = BatchArchiver(ArchiveTable.of(root)), 0, max(1, commit_bytes // _ENTRY_BYTES)
    # An hour of such a run passes in a minute here: replaced files would fill the disk.
    small = SmallFiles(archiver.table, state=archiver.state, grace_s=0)
    now_ms = time.time_ns() // 1_000_000
    first_ms, before, took = now_ms - commits * _EVERY_MS, Position("0-0", 0), list[float]()
    # The last ones are those behind the last checkpoint, of which both archives have as many.
    while number < commits or archiver.table.since_noted(archiver.state) != _BEHIND_CHECKPOINT:
        ms = first_ms + number * _EVERY_MS
        entries = [(b"%d-%d" % (ms, n), [b"data", os.urandom(min(commit_bytes, _ENTRY_BYTES))]) for n in range(rows)]
        batch = RowBuilder(READ_SCHEMA).build([(_STREAM, entries)])
        after = Position(f"{ms}-{rows - 1}", (before.rank or 0) + rows)
        offsets = Offsets({_STREAM: BatchRange(after, before)})
        started = time.perf_counter()
        archiver.archive(offsets, lambda task, batch=batch: task.write([batch]))
        small.run_if_it_pays()
        took.append(time.perf_counter() - started)
        before, number = after, number + 1
        if number % _AGE_EVERY == 0:
            _age(root / "_delta_log", max(0, commits - number) * _EVERY_MS / 1000)
            print(f"\r  {number:,} commits", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    return took


_aged: set[str] = set()


def _age(log: Path, age_s: float) -> None:
    """Gives files of the log that are new the age of the commits that were just made."""
    at = time.time() - age_s
    found = [entry.path for entry in os.scandir(log)]
    for path in found:
        if path not in _aged:
            os.utime(path, (at, at))
    _aged.clear()
    _aged.update(found)


def of_a_day(root: Path, most_ms: int) -> int:
    """Reads the last day that is over, or what there is of it, up to some milliseconds; returns how many entries."""
    log = ColdLog(ArchiveTable.of(root))  # not that of this process, which would be open already
    log.refresh()
    times = [int(each.partition("-")[0]) for entry in log.coverage(_STREAM).files for each in (entry.first, entry.last)]
    today = max(times) // DAY_MS * DAY_MS
    low = max(min(times), today - DAY_MS)
    high = min(low + most_ms, today if low < today else max(times) + 1)
    return sum(len(page) for page in log.pages(_STREAM, ids.before(f"{low}-0"), ids.before(f"{high}-0")))


def described(root: Path) -> str:
    """Says what an archive consists of."""
    found, state = list((root / "_delta_log").iterdir()), load_state(root)
    size = sum(entry.bytes for entry in state.files.values())
    return f"{state.version:,} commits: {len(state.files):,} files with {size / 1e6:,.1f} MB, {len(found):,} in the log"


def seconds(work: Callable[[], object]) -> float:
    """Returns the median of some rounds."""
    found = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return median(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.archive_commits", description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument(
        "--commit-bytes", type=int, default=_LEAST_BYTES, help="bytes of a commit, in entries of 1 kB of random bytes"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if the greater archive takes 1.5 times as long"
    )
    parser.add_argument("--keep", type=Path, help="keep both archives in this folder, or measure those that it has")
    arguments = parser.parse_args()
    kept = arguments.keep
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="bench-archive-") as place:
        roots = Path(place) / "few", Path(place) / "many"
        rows, is_met = [], True
        if not roots[1].exists():
            began_s = time.monotonic()
            took = [made(roots[0], _SMALL, arguments.commit_bytes)]
            day_s = (time.monotonic() - began_s) / _SMALL * (DAY_MS / _EVERY_MS)  # for as many commits as a day has
            archive_table.CONFIGURATION["delta.deletedFileRetentionDuration"] = f"interval {math.ceil(day_s)} seconds"
            took.append(made(roots[1], arguments.commits, arguments.commit_bytes))
            few, many = (mean(each[-_SMALL:]) for each in took)
            rows.append(_row("commit and merge (mean of the last 100)", few, many))
            print(f"{mean(took[1]) * 1000:.1f} ms for each commit of the greater archive")
        for root in roots:
            print(described(root))
        works: dict[str, Callable[[Path], object]] = {
            "open": load_state,
            "status": status,
            "read what 100 commits of a day added": partial(of_a_day, most_ms=_SMALL * _EVERY_MS),
        }
        for name, work in works.items():
            less, more = (seconds(partial(work, root)) for root in roots)
            is_met = is_met and more / less <= _MOST_RATIO
            rows.append(_row(name, less, more))
        entries = [of_a_day(root, DAY_MS) for root in roots]
        each = [seconds(partial(of_a_day, root, DAY_MS)) / n for root, n in zip(roots, entries, strict=True)]
        rows.append(_row(f"read a day, per entry ({entries[0]:,} and {entries[1]:,})", *each))
    print(f"\nmilliseconds in each archive (median of {_ROUNDS} rounds); ratio = greater archive / smaller archive")
    print(table(["", f"{_SMALL} commits", f"{arguments.commits:,} commits", "ratio"], rows))
    return int(arguments.strict and not is_met)


def _row(name: str, few_s: float, many_s: float) -> list[str]:
    return [name, f"{few_s * 1000:,.4g} ms", f"{many_s * 1000:,.4g} ms", f"{many_s / few_s:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
