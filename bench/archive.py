"""Archives, verifies, compacts, reads, reports on and replays N messages at two sizes: `python -m bench.archive`.

Time for each message and the most memory of the processes, the greater size beside the smaller: both should be equal.
The smaller one is measured before and after the greater one, since a machine does not keep its speed for ten minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from bench.process_memory import PeakMemory
from bench.report import table
from bench.server import Server
from bench.spark.data import dense_payload, fill
from penstock.spark import report as about
from penstock.spark import session
from penstock.spark.archive import ArchiveRun, compact, status, verify
from penstock.spark.replay import ArchiveOrigin, Replay, Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = {"spark.driver.memory": "1g", "spark.ui.enabled": False, "spark.ui.showConsoleProgress": False}
_MOST_RATIO = 1.15
_MOST_GROWTH = 1.5
_A_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Figure:
    """What one step took."""

    step: str
    messages: int
    wall_s: float
    peak_mb: dict[str, float]

    @property
    def us(self) -> float:
        return self.wall_s / self.messages * 1e6


class Subject:
    """A server, a session and an archive."""

    def __init__(self, server: Server, spark: SparkSession, place: Path, batch_rows: int) -> None:
        self._server, self._spark, self._place, self._batch_rows = server, spark, place, batch_rows
        self._url = f"redis://127.0.0.1:{server.port}"

    def measure(self, name: str, messages: int) -> list[Figure]:
        """Takes messages through all steps."""
        options, root = {"url": self._url}, self._place / name
        fill(self._server.client, [name], messages, dense_payload)
        run = ArchiveRun(root, name, {**options, "minPartitions": "2"}, max_batch_rows=self._batch_rows)
        found = [timed("archive", messages, lambda: run.start(self._spark, once=True).awaitTermination())]
        self._server.client.xtrim(name, maxlen=0, approximate=False)  # retention
        size = sum(each.bytes for each in status(root))
        print(f"  {'on disk':<14} {size / 1e6:>9,.1f} MB, {size / messages:.0f} bytes a message", flush=True)
        found.append(timed("verify", messages, lambda: _check(verify(root).rows, messages)))
        found.append(timed("verify --rows", messages, lambda: _check(verify(root, rows=True).rows, messages)))
        found.append(timed("compact", messages, lambda: compact(root, grace_s=0)))
        self._read(name, root)  # the first read of a session takes six times as long, whatever it reads
        found.append(timed("read, Spark", messages, lambda: _check(self._read(name, root), messages)))
        found.append(timed("report", messages, lambda: _check(self._report(name, root), messages)))
        again = f"{name}-again"
        found.append(timed("replay", messages, lambda: _check(self._replay(name, root, again), messages)))
        _check(int(self._server.client.xlen(again)), messages)
        self._server.client.delete(again)
        return found

    def _read(self, name: str, root: Path) -> int:
        reader = self._spark.read.format("redis_streams").schema("id string, data binary")
        settings = {"url": self._url, "streams": name, "archive": str(root)}
        return reader.options(**settings, minPartitions="2").load().count()

    def _report(self, name: str, root: Path) -> int:
        now = datetime.now(UTC)
        target, window = about.Target(name, {"url": self._url}, root), about.Window.of(now - _A_DAY, now, now)
        figures = about.ReportQuery(self._spark, target, window).figures(lambda _: None)
        about.render(figures, target, window, window.high)
        return figures.messages.whole.count

    def _replay(self, name: str, root: Path, into: str) -> int:
        return Replay(ArchiveOrigin(root, name, Span()), into, {"url": self._url}).run().added


def _check(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found:,} messages instead of {wanted:,}")


def timed(step: str, messages: int, work: Callable[[], object]) -> Figure:
    with PeakMemory() as memory:
        started = time.perf_counter()
        work()
        wall_s = time.perf_counter() - started
    figure = Figure(step, messages, wall_s, dict(memory.mb))
    peaks = ", ".join(f"{role} {mb:,.0f} MB" for role, mb in figure.peak_mb.items() if mb)
    print(f"  {step:<14} {messages / wall_s:>10,.0f}/s  {figure.us:7.2f} us  {peaks}", flush=True)
    return figure


def compared(small: list[Figure], big: list[Figure], small_again: list[Figure]) -> tuple[str, bool]:
    """Returns the table of ratios, and whether all are within the bounds."""
    rows, is_met = [], True
    # One session does all steps, and Java gives little back: what counts is the most that it had at the smaller size.
    before = {role: max(figure.peak_mb[role] for figure in small) for role in small[0].peak_mb}
    for less, more, again in zip(small, big, small_again, strict=True):
        ratio = more.us / mean([less.us, again.us])
        growth = {role: mb / before[role] for role, mb in more.peak_mb.items() if before[role]}
        is_fine = ratio <= _MOST_RATIO and max(growth.values(), default=0.0) <= _MOST_GROWTH
        is_met = is_met and is_fine
        memory = ", ".join(f"{role} {times:.2f}" for role, times in growth.items())
        rows.append([less.step, f"{ratio:.2f}", memory, "yes" if is_fine else "NO"])
    heading = [f"{big[0].messages:,} beside {small[0].messages:,}", "time a message", "peak memory", "met"]
    return table(heading, rows), is_met


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=__doc__)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--big", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="entries of a batch of the archive run at most")
    parser.add_argument("--warm-up", type=int, default=50_000)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if time or memory grows more than allowed")
    arguments = parser.parse_args()
    found = []
    with Server() as server, tempfile.TemporaryDirectory(prefix="bench-archive-") as place:
        spark = session("bench archive", "local[2]", conf=_CONF)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            subject = Subject(server, spark, Path(place), arguments.batch)
            sizes = {"warm-up": arguments.warm_up, "small": arguments.small, "big": arguments.big}
            for name, messages in (*sizes.items(), ("small again", arguments.small)):
                print(f"{name}: {messages:,} messages", flush=True)
                found.append(subject.measure(name.replace(" ", "-"), messages))
        finally:
            spark.stop()
    text, is_met = compared(*found[1:])
    print("\n" + text)
    return int(arguments.strict and not is_met)


if __name__ == "__main__":
    sys.exit(main())
