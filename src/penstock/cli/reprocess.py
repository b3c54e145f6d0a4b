"""`penstock reprocess`: a mended handler over what was archived, or over what was given up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.bad_input import bad_input, query_failed
from penstock.cli.progress_bar import progress_bar
from penstock.cli.quiet_spark import quiet_session
from penstock.cli.results_place import result_settings
from penstock.cli.settings_options import ConfigFile
from penstock.cli.shown import shown
from penstock.cli.spark_master import Master, check_master
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.spark.reprocess import Reprocess, Selection, Summary

_LOOK_S = 0.5
_HERE, _REPEATING = "local[*]", "local[*,4]"


def reprocess(
    stream: Annotated[str, typer.Option(help="The stream whose messages they were.")],
    handler: Annotated[str, typer.Option(help="The batch handler, as package.module:function.")],
    url: Annotated[str | None, typer.Option(envvar="PENSTOCK_URL", help="Where Redis is, for dead letters.")] = None,
    archive: Annotated[str | None, typer.Option(help="Messages of this archive.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="From a time on: 2026-11-15T12:00Z, or ms.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Before a time.")] = None,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="The dead letters of the stream.")] = False,
    reason: Annotated[str | None, typer.Option(help="Only dead letters of this reason.")] = None,
    where: Annotated[str | None, typer.Option(help="A condition in SQL over the columns.")] = None,
    results: Annotated[str | None, typer.Option(help="Where results go: fs, postgres, s3, a folder or a URL.")] = None,
    payload: Annotated[str, typer.Option(help="How messages are encoded: json, msgpack or raw.")] = "json",
    name: Annotated[str | None, typer.Option(help="A new round: results are kept under <name>.<id>.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Messages that the handler gets at a time.")] = 100,
    max_attempts: Annotated[int, typer.Option(min=1, help="How often a message is tried.")] = 3,
    timeout: Annotated[str | None, typer.Option(help="How long a call of the handler may take: 30s, 5m.")] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete dead letters that have a good result then.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and handle nothing.")] = False,
    config: ConfigFile = None,
    master: Master = None,
) -> None:
    """Run a handler over messages again, on Spark; started again, it goes on with those that have no result."""
    from penstock.spark.prerequisites import require_pyspark

    require_pyspark()
    from penstock.spark.reprocess import Reprocess, Work
    from penstock.spark.session import default_master

    # The handler lies where the command is run, as with `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    with bad_input():
        check_master(master)
        selection = _selection(stream, url, archive, from_, to, dead_letters, reason, where)
        work = Work(handler, result_settings(results, config), payload, batch_size, max_attempts, name, timeout)
        job = Reprocess(selection, work, purge=purge)
        job.check()
        if not dry_run:
            job.check_results()
    # A worker that must be ended leaves its task to be repeated, as on a cluster; by default Spark does not do it here.
    _run(job, master or (_REPEATING if timeout and default_master() == _HERE else None), dry_run=dry_run)


def _selection(
    stream: str,
    url: str | None,
    archive: str | None,
    from_: str | None,
    to: str | None,
    dead_letters: bool,
    reason: str | None,
    where: str | None,
) -> Selection:
    from penstock.spark.archive.read import moment_ms
    from penstock.spark.reprocess import Archived, DeadLetters

    if (archive is not None) == dead_letters:
        raise ConfigurationError("say which messages: one of --archive ROOT and --dead-letters")
    if archive is not None:
        if reason is not None:
            raise ConfigurationError("--reason is for --dead-letters: archived messages have none")
        return Archived(archive, stream, moment_ms("--from", from_), moment_ms("--to", to), where)
    if from_ is not None or to is not None:
        raise ConfigurationError("--from and --to are for --archive; of dead letters choose with --reason or --where")
    if url is None:
        raise ConfigurationError("say where Redis is: --url redis://localhost:6379, or PENSTOCK_URL")
    return DeadLetters({"url": url}, stream, reason, where)


def _run(job: Reprocess, master: str | None, *, dry_run: bool) -> None:
    from pyspark.errors import PySparkException

    from penstock.spark.master import is_connect

    spark = quiet_session("penstock reprocess", master)
    try:
        with bad_input():
            total = job.count(spark)
        print(f"{total:,} messages", flush=True)
        if dry_run:
            print("dry run: nothing was handled, nothing was written")
            return
        told = None if is_connect(spark) else spark.sparkContext.accumulator(0)
        with nullcontext() if told is None else _watched(told, total):
            summary = job.run(spark, told)
    except PySparkException as error:
        raise query_failed(error) from None
    _tell(summary)


@contextmanager
def _watched(told: Any, total: int) -> Iterator[None]:
    """Show how many messages are through, on a terminal."""
    is_over = threading.Event()
    with progress_bar("reprocess", total) as tell:

        def watch() -> None:
            while not is_over.wait(_LOOK_S):
                tell(told.value)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


def _tell(summary: Summary) -> None:
    print(f"done {summary.done:,}, failed {summary.failed:,}; {summary.earlier:,} of them had a result before")
    for failure in summary.failures:
        what = shown(f"{failure.error}: {failure.text} (such as {failure.example})")
        print(f"  failed {failure.count:,}: {what}")
    if summary.earlier_failed:
        print(
            f"  {summary.earlier_failed:,} failed in an earlier run; --name begins a new round, with results of its own"
        )
    if summary.purged:
        print(f"purged {summary.purged:,} dead letters")
