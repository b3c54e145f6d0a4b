"""`penstock archive`: streams into a Parquet log, and what can be asked of it."""

from __future__ import annotations

import logging
import re
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from penstock.cli.bad_input import QueryFailed, bad_input, query_failed
from penstock.cli.quiet_spark import quiet_session
from penstock.cli.shown import cell, print_error, print_table, shown, to_json
from penstock.cli.spark_master import Master, check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

archive = typer.Typer(help="Copy streams into a Parquet log, verify it, compact it.", no_args_is_help=True)
Root = Annotated[str, typer.Option("--root", help="Where the archive lies: a path that driver and executors share.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_ADVICE = re.compile(r"[Ss]et option failOnDataLoss=false.*")  # for those who give options; here there is a flag
_PATIENCE_S = 60.0


@archive.command()
def run(
    root: Root,
    streams: Annotated[str, typer.Option(help="One stream, several with commas, or a pattern such as 'orders:*'.")],
    url: Annotated[str, typer.Option(envvar="PENSTOCK_URL", help="Where Redis is.")],
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, and end.")] = False,
    group: Annotated[str, typer.Option(help="Consumer group that shows how far the archive is.")] = "penstock-archive",
    every: Annotated[str, typer.Option(help="How often a batch begins.")] = "10 seconds",
    max_batch_rows: Annotated[int, typer.Option(min=1, help="Entries of a batch at most.")] = 1_000_000,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on when entries were trimmed before; they are recorded.")
    ] = False,
    master: Master = None,
) -> None:
    """Copy streams into the archive, until stopped or, with --once, up to now."""
    from penstock.spark.archive import ArchiveRun, is_archive

    job = ArchiveRun(
        root,
        streams,
        {"url": url},
        group=group,
        fail_on_data_loss=not allow_data_loss,
        max_batch_rows=max_batch_rows,
        trigger=every,
        tell=lambda done: print(
            f"batch {done.batch}: {done.rows:,} entries, {done.rows / max(done.wall_s, 1e-9):,.0f}/s", flush=True
        ),
    )
    with bad_input():
        check_master(master, needs_classic=True)
        job.check()
        spark = quiet_session("penstock archive", master, is_long=not once)
        query = job.start(spark, once=once)
    try:
        _attend(query)
    finally:
        _end(spark)
    if is_archive(root):
        _show(root, as_json=False)
    else:
        print(f"nothing is archived yet: no stream {streams!r} has entries")


def _end(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types

    with suppress(Py4JError, OSError):  # Java may be gone
        spark.stop()


def _attend(query: StreamingQuery) -> None:
    """Wait for the end of the query; SIGTERM and SIGINT let it finish the batch that it is at.

    Some supervisors send SIGTERM to Java as well. Then the batch is not finished, and archived by the next run.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import StreamingQueryException

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it prints a traceback for each word that Java does not hear
    stop_s: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_s.append(time.monotonic()))
    try:
        while not query.awaitTermination(1):
            if stop_s and (not query.status["isTriggerActive"] or time.monotonic() - stop_s[0] > _PATIENCE_S):
                query.stop()
    except StreamingQueryException as error:
        told = _ADVICE.sub("Start it with --allow-data-loss to go on without them", str(query_failed(error)))
        _ended(told, is_stopped=bool(stop_s))
    except (Py4JError, ConnectionError) as error:
        if isinstance(error, Py4JJavaError) and not stop_s:
            raise
        why = "Spark's Java has ended: it was killed, or had too little memory"
        _ended(f"{why}. Started again, the run goes on where it was", is_stopped=bool(stop_s))


def _ended(told: str, *, is_stopped: bool) -> None:
    if not is_stopped:
        raise QueryFailed(told) from None
    print_error(f"stopped before the batch was done, and the next run archives it: {told}")


@archive.command()
def status(root: Root, as_json: AsJson = False) -> None:
    """Show what is archived."""
    with bad_input():
        _show(root, as_json)


def _show(root: str, as_json: bool) -> None:
    from penstock.spark.archive import status as of

    found = of(root)
    if as_json:
        print(to_json(found, indent=2))
        return
    table = Table("stream", "entries", "files", "bytes", "days", "first", "archived up to", "lost before")
    for each in found:
        lost = "unknown" if each.lost is None else f"{each.lost:,}"
        numbers = (f"{each.rows:,}", f"{each.files:,}", f"{each.bytes:,}", str(each.days))
        table.add_row(cell(each.stream), *numbers, each.first or "-", each.upto, lost)
    print_table(table)


@archive.command()
def verify(
    root: Root,
    rows: Annotated[bool, typer.Option("--rows", help="Decode the files and compare their rows, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every file and every range with the manifest; code 1 if anything is not as it should be."""
    from penstock.spark.archive import verify as examine

    with bad_input():
        report = examine(root, rows=rows)
    if as_json:
        print(to_json({"is_sound": report.is_sound, **asdict(report)}, indent=2))
    else:
        for finding in report.findings:
            print(shown(finding))
        for loss in report.known_losses:
            print(f"note: {shown(loss)}")
        verdict = "sound" if report.is_sound else f"{len(report.findings):,} findings"
        print(f"{verdict}: {report.commits:,} commits, {report.files:,} files, {report.rows:,} entries")
    if not report.is_sound:
        raise typer.Exit(1)


@archive.command()
def compact(
    root: Root,
    target_mb: Annotated[int, typer.Option(min=1, help="Size that files are brought up to.")] = 256,
    grace_s: Annotated[
        float, typer.Option(min=0, help="How long replaced files stay for who still reads them.")
    ] = 3600,
) -> None:
    """Make few big files of the many small ones of a day."""
    from penstock.spark.archive import compact as merge

    with bad_input():
        done = merge(root, target_bytes=target_mb << 20, grace_s=grace_s)
    print(f"{done.merged:,} files became {done.made:,}; {done.cleaned:,} replaced files were removed")
