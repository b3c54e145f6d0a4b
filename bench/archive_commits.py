"""What an archive costs after many commits: `python -m bench.archive_commits --commits 100000`.

Makes the commits, one entry each, with the code of an archive run, its own compactions and the shortening of its log
included; then opens the archive, asks for its status and reads one day, and compares that with an archive of 100
commits. The commits are those of a run with a batch every ten seconds: files of the log get the age that they would
have, since it is by age that the log is shortened.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median

from bench.report import table
from penstock.spark.archive import status
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


def made(root: Path, commits: int) -> None:
    """Makes an archive whose last commit is of now."""
    archiver, number = BatchArchiver(ArchiveTable.of(root)), 0
    now_ms = time.time_ns() // 1_000_000
    first_ms, before = now_ms - commits * _EVERY_MS, "0-0"
    # The last ones are those behind the last checkpoint, of which both archives have as many.
    while number < commits or archiver.table.since_noted(archiver.state) != _BEHIND_CHECKPOINT:
        entry_id = f"{first_ms + number * _EVERY_MS}-0"
        batch = RowBuilder(READ_SCHEMA).build([(_STREAM, [(entry_id.encode(), [b"data", b"%d" % number])])])
        progress = BatchRange(Position(entry_id, number + 1), Position(before, number))
        archiver.archive(Offsets({_STREAM: progress}), lambda task, batch=batch: task.write([batch]))
        SmallFiles(archiver.table, state=archiver.state).run_if_it_pays()
        before, number = entry_id, number + 1
        if number % _AGE_EVERY == 0:
            _age(root / "_delta_log", max(0, commits - number) * _EVERY_MS / 1000)
            print(f"\r  {number:,} commits", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)


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


def of_a_day(root: Path) -> int:
    """Reads the day before the last one, or what there is of it."""
    ends = [int(each.last.partition("-")[0]) for each in load_state(root).files_of(_STREAM)]
    last = max(ends) // DAY_MS * DAY_MS
    low = max(min(ends), last - DAY_MS)
    pages = ColdLog.of(root).pages(_STREAM, f"{low}-0", f"{low + _SMALL * _EVERY_MS}-0")
    return sum(len(page) for page in pages)


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
        "--strict", action="store_true", help="exit with 1 if the greater archive takes 1.5 times as long"
    )
    parser.add_argument("--keep", type=Path, help="keep both archives in this folder, or measure those that it has")
    arguments = parser.parse_args()
    rows, is_met = [], True
    kept = arguments.keep
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="bench-archive-") as place:
        few, many = Path(place) / "few", Path(place) / "many"
        if not many.exists():
            made(few, _SMALL)
            started = time.perf_counter()
            made(many, arguments.commits)
            print(f"{(time.perf_counter() - started) / arguments.commits * 1000:.1f} ms for each commit")
        state = load_state(many)
        files = len(list((many / "_delta_log").iterdir()))
        print(f"{arguments.commits:,} commits; {len(state.files):,} files, {files:,} in the log")
        works: dict[str, Callable[[Path], object]] = {
            "open": load_state,
            "status": status,
            "read 100 entries of a day": of_a_day,
        }
        for name, work in works.items():
            less, more = (seconds(partial(work, root)) for root in (few, many))
            is_met = is_met and more / less <= _MOST_RATIO
            rows.append([name, f"{less * 1000:.1f} ms", f"{more * 1000:.1f} ms", f"{more / less:.2f}"])
    print(table(["", f"{_SMALL} commits", f"{arguments.commits:,} commits", "ratio"], rows))
    return int(arguments.strict and not is_met)


if __name__ == "__main__":
    sys.exit(main())
