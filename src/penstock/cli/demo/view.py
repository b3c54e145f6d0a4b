"""How the demo shows itself: bars on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from penstock.cli.demo.run import DemoSummary
from penstock.cli.demo.spark import SparkCount
from penstock.cli.shown import cell
from penstock.shown import shown

_LINE_EVERY_S = 1.0
_HOW = "Counted in Redis at the end, entry by entry (XRANGE and XPENDING)."


class PlainOutput:
    """Prints the progress in plain lines, for logs and pipes."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._started_s = self._last_line_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave everything as it is."""

    def show(self, text: str) -> None:
        """Show what happened."""
        elapsed_s = time.monotonic() - self._started_s
        self._console.print(f"{elapsed_s:5.1f} s  {shown(text)}", highlight=False, markup=False, soft_wrap=True)

    def progress(self, published: int, settled: int) -> None:
        """Show how far it is, once a second."""
        if time.monotonic() - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self.show(f"published {published:,}, settled {settled:,} of {self._total:,}")


class ProgressOutput:
    """Shows progress bars, with messages above them."""

    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._published = self._progress.add_task("published", total=total)
        self._settled = self._progress.add_task("settled", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, text: str) -> None:
        """Show what happened."""
        self._progress.console.print(Text.assemble((">", "dim"), " ", shown(text)), highlight=False)

    def progress(self, published: int, settled: int) -> None:
        """Show how far it is."""
        self._progress.update(self._published, completed=published)
        self._progress.update(self._settled, completed=settled)


def output(console: Console, total: int) -> PlainOutput | ProgressOutput:
    """Return what fits the console."""
    return (
        ProgressOutput(console, total)
        if console.is_terminal and not console.is_dumb_terminal
        else PlainOutput(console, total)
    )


def table(summary: DemoSummary) -> Table:
    """Return the proof as a table."""
    balance = summary.balance
    made = Table(
        box=box.SIMPLE_HEAD,
        show_header=False,
        title=cell(f"Penstock on {summary.server}"),
        title_justify="left",
        caption=_HOW,
        caption_justify="left",
    )
    made.add_column(no_wrap=True)
    made.add_column(justify="right", style="bold", no_wrap=True)
    made.add_column(style="dim")
    made.add_row("published", f"{balance.published:,}", "ids returned to the producers")
    made.add_row("acknowledged", f"{balance.acknowledged:,}", "distinct orders in the handlers' journal")
    why = ", ".join(f"{count} {reason}" for reason, count in summary.dead_letters.items())
    made.add_row("dead-lettered", f"{balance.dead_lettered:,}", cell(why or "none"))
    made.add_row("still queued", f"{balance.queued:,}", "pending or unread entries")
    made.add_row("lost", f"{balance.lost:,}", "published, but in none of these places")
    made.add_row("in two places", f"{balance.doubled:,}", "each order must be in exactly one", end_section=True)
    if summary.killed:
        made.add_row("killed", summary.killed, f"SIGKILL, while holding {summary.held:,} orders")
        text = f"until its last order was handled; lease {summary.lease_s:g} s"
        made.add_row("recovery", f"{summary.recovery_s:.1f} s", text)
    made.add_row("duplicates", f"{summary.duplicates:,}", _why_duplicates(summary))
    pace = f"orders of {summary.work_ms:.0f} ms, {summary.at_a_time} at a time, for {summary.seconds:.1f} s"
    made.add_row("throughput", f"{summary.per_second:,.0f}/s", pace, end_section=summary.spark is not None)
    if summary.spark is not None:
        _add_spark(made, summary.spark)
    return made


def _add_spark(made: Table, spark: SparkCount) -> None:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(spark.kinds.items()))
    made.add_row("read by Spark", f"{spark.parquet:,}", cell(f"of {spark.in_redis:,} in the stream: {kinds}"))
    made.add_row("back in a stream", f"{spark.back_in_redis:,}", f"from Parquet; {spark.seconds:.0f} s in total")


def verdict(summary: DemoSummary) -> str:
    """Return the outcome in one line."""
    balance = summary.balance
    terms = (
        f"acknowledged {balance.acknowledged:,} + dead-lettered {balance.dead_lettered:,} + queued {balance.queued:,}"
    )
    if balance.holds and not summary.holds:
        return "The balance holds, but Spark and Redis count different orders: please report it. " + str(summary.spark)
    if balance.holds:
        spark = " Spark agrees." if summary.spark is not None else ""
        return f"The balance holds: published {balance.published:,} = {terms}.{spark}"
    return (
        f"The balance does NOT hold: published {balance.published:,}, {terms}, lost {balance.lost:,}, in two places "
        f"{balance.doubled:,}. This is a bug in Penstock: please report it with --seed {summary.seed}."
    )


def _why_duplicates(summary: DemoSummary) -> str:
    if not summary.duplicates:
        return "no order was handled twice"
    if not summary.duplicates_by_the_kill:
        return "orders handled again after a lease expired"
    rest = summary.duplicates - summary.duplicates_by_the_kill
    others = f"; {rest:,} after a lease expired" if rest else ""
    return (
        f"{summary.duplicates_by_the_kill:,} handled by {summary.killed}, which was killed before "
        f"acknowledging them{others}"
    )
