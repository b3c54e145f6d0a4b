"""`penstock archive`: streams into a Delta table, and what can be asked of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import UNHEALTHY, Server, command, group
from penstock.cli.java_output import silent_end
from penstock.cli.options import Archive, AsJson, Once, duration
from penstock.cli.shown import print_error, print_rows, say
from penstock.cli.spark_session import Master, QueryFailed, check_master, query_failed, quiet_session
from penstock.cli.stopping import Stopping, stopping
from penstock.errors import PenstockError
from penstock.shown import shown, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.archive import ArchiveRun
    from penstock.spark.archive.run import CommittedBatch

app = group("Copy streams into a Delta table; verify and compact it.")
KeepReplaced = Annotated[
    float,
    duration(
        "How long replaced files are kept for running readers, in whole hours, up to 24h.",
        "--keep-replaced",
        default="1h",
    ),
]
_ADVICE = re.compile(r"[Ss]et option failOnDataLoss=false.*")  # for those who give options; here there is a flag


@command(app)
def run(
    server: Server,
    archive: Archive,
    stream: Annotated[
        str, typer.Option(help="A stream, several separated by commas, or a pattern such as 'orders:*'.")
    ],
    once: Once = True,
    group: Annotated[
        str,
        typer.Option(
            help="The consumer group that records how far the archive has read. `stream trim --archived-only` knows "
            "archives by this name, or one that begins with penstock-archive-."
        ),
    ] = "penstock-archive",
    every: Annotated[float, duration("How often to start a batch, with --continuous.", default="10s")] = 10.0,
    max_batch_rows: Annotated[int, typer.Option(min=1, help="Maximum number of entries per batch.")] = 1_000_000,
    allow_data_loss: Annotated[
        bool,
        typer.Option(
            "--allow-data-loss",
            help="Continue even if entries were trimmed before they were archived; record the gap.",
        ),
    ] = False,
    keep_replaced: KeepReplaced = 3_600.0,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Copy streams into the archive, then print what it contains."""
    from penstock.spark.archive import ArchiveRun, is_archive

    job = ArchiveRun(
        archive,
        stream,
        {"url": server.url},
        group=group,
        fail_on_data_loss=not allow_data_loss,
        max_batch_rows=max_batch_rows,
        trigger=f"{every}s",
        grace_s=keep_replaced,
    )
    check_master(master, needs_classic=True)
    job.check()
    with stopping("archive") as stop:
        with stop.at_once():
            spark = quiet_session("penstock archive", master, is_long=not once)
        try:
            _archive(job, spark, stop, once=once)
        finally:
            _end(spark)
    if is_archive(archive):
        _show(archive, as_json)
    else:
        say(f"nothing is archived yet: no stream {stream!r} with entries was found")


def _archive(job: ArchiveRun, spark: SparkSession, stop: Stopping, *, once: bool) -> None:
    """Run to the end; a continuous run restarts after failures that pass."""
    from penstock.spark.runtime.errors import is_transient_failure
    from penstock.spark.runtime.restarts import MOST_RESTARTS, run_with_restarts

    batches = 0

    def tell(done: CommittedBatch) -> None:
        nonlocal batches
        batches += 1
        say(f"batch {done.batch}: {done.rows:,} entries, {done.rows / max(done.wall_s, 1e-9):,.0f}/s")

    def most(error: PenstockError) -> int:
        passes = error.is_transient if isinstance(error, QueryFailed) else is_transient_failure(repr(error))
        return MOST_RESTARTS if passes and not once else 0

    run = replace(job, tell=tell, is_stopping=lambda: stop.is_requested)

    def attempt() -> None:
        try:
            query = run.start(spark, once=once)
        except PenstockError as error:
            if not stop.is_requested:
                raise
            print_error(f"stopped before the archive run had started: {error}")
        else:
            _wait_for_end(query, stop)

    run_with_restarts(
        attempt,
        batches=lambda: batches,
        most=most,
        is_stopping=lambda: stop.is_requested,
    )


def _end(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types

    silent_end()
    with suppress(Py4JError, OSError):  # Java may be gone
        spark.stop()


def _wait_for_end(query: StreamingQuery, stop: Stopping) -> None:
    """Wait for the end of the query; asked to stop, it finishes the batch that it is at.

    Some supervisors send SIGTERM to Java as well. Then the batch is not finished, and archived by the next run.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import StreamingQueryException

    from penstock.spark.runtime.errors import StopAsked

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it prints a traceback for each message that Java misses
    try:
        while not query.awaitTermination(1):
            if stop.is_requested and not query.status["isTriggerActive"]:
                query.stop()
    except StreamingQueryException as error:
        if stop.is_requested and StopAsked.__name__ in str(error):
            return
        failed = query_failed(error)
        text = _ADVICE.sub("Use --allow-data-loss to continue without them", str(failed))
        _ended(QueryFailed(text, is_transient=failed.is_transient), is_stopped=stop.is_requested)
    except (Py4JError, ConnectionError) as error:
        if isinstance(error, Py4JJavaError) and not stop.is_requested:
            raise
        why = "the Java process of Spark ended: it was killed, or ran out of memory"
        failed = QueryFailed(f"{why}. Run the command again to continue where it stopped")
        _ended(failed, is_stopped=stop.is_requested)


def _ended(failed: QueryFailed, *, is_stopped: bool) -> None:
    if not is_stopped:
        raise failed from None
    print_error(f"stopped in the middle of a batch, which the next run archives: {failed}")


@command(app)
def status(archive: Archive, as_json: AsJson = False) -> None:
    """Print what the archive contains."""
    _show(archive, as_json)


def _show(archive: str, as_json: bool) -> None:
    from penstock.spark.archive import status as of

    columns: dict[str, Callable[[Any], object]] = {
        "stream": lambda each: each.stream,
        "entries": lambda each: each.rows,
        "files": lambda each: each.files,
        "bytes": lambda each: each.bytes,
        "days": lambda each: each.days,
        "first": lambda each: each.first,
        "archived up to": lambda each: each.upto,
        "lost": lambda each: "unknown" if each.lost is None else each.lost,
    }
    print_rows(of(archive), columns, as_json=as_json, none="nothing is archived yet")


@command(app)
def verify(
    archive: Archive,
    rows: Annotated[bool, typer.Option("--rows", help="Also decode the files and compare their rows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every file and every range with the log of the table; exit with code 3 if anything differs."""
    from penstock.spark.archive import verify as examine

    report = examine(archive, rows=rows)
    if as_json:
        print(to_json({"is_sound": report.is_sound, **asdict(report)}))
    else:
        for finding in report.findings:
            print(shown(finding))
        for loss in report.known_losses:
            print(f"note: {shown(loss)}")
        verdict = "sound" if report.is_sound else f"{len(report.findings):,} findings"
        print(f"{verdict}: {report.commits:,} commits, {report.files:,} files, {report.rows:,} entries")
    if not report.is_sound:
        raise typer.Exit(UNHEALTHY)


@command(app)
def compact(
    archive: Archive,
    target_mb: Annotated[int, typer.Option(min=1, help="Target size of the compacted files, in MB.")] = 256,
    keep_replaced: KeepReplaced = 3_600.0,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of each day into few large ones."""
    from penstock.spark.archive import compact as merge

    done = merge(archive, target_bytes=target_mb << 20, grace_s=keep_replaced)
    text = f"merged {done.merged:,} files into {done.made:,}; removed {done.cleaned:,} replaced files"
    print(to_json(done) if as_json else text)


@command(app, "import")
def import_(
    source: Annotated[str, typer.Option("--source", help="The folder of the old archive, which is not changed.")],
    archive: Archive,
    as_json: AsJson = False,
) -> None:
    """Copy an archive in the format of an older Penstock, before Delta tables, into a new archive."""
    from penstock.spark.archive import import_archive

    copied = import_archive(source, archive, tell=lambda stream, rows: say(f"{shown(stream)}: {rows:,} entries"))
    print(
        to_json({"copied": copied})
        if as_json
        else (f"copied {copied:,} entries; run `penstock archive verify` to check them")
    )
