"""`penstock reprocess`: a mended handler over what was archived, or over what was given up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Server
from penstock.cli.options import AsJson, DryRun, Reason, Results, Since, Until, duration
from penstock.cli.results_place import result_settings
from penstock.cli.shown import progress_bar, say
from penstock.cli.spark_session import Master, check_master, query_failed, quiet_session
from penstock.cli.stopping import Stopping, stopping
from penstock.errors import ConfigurationError
from penstock.shown import shown, to_json

if TYPE_CHECKING:
    from penstock.spark.reprocess import Reprocess, Selection, Summary

_POLL_S = 0.5
_LOCAL_MASTER, _LOCAL_RETRY_MASTER = "local[*]", "local[*,4]"


def reprocess(
    server: Server,
    stream: Annotated[str, typer.Option(help="The stream that the messages come from.")],
    handler: Annotated[str, typer.Option(help="The batch handler, as package.module:function.")],
    archive: Annotated[str | None, typer.Option(help="Read messages from this archive.")] = None,
    since: Since = None,
    until: Until = None,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Read the dead letters of the stream.")] = False,
    reason: Reason = None,
    where: Annotated[str | None, typer.Option(help="An SQL condition on the columns.")] = None,
    results: Results = None,
    payload: Annotated[str, typer.Option(help="How payloads are encoded: json, msgpack or raw.")] = "json",
    name: Annotated[str | None, typer.Option(help="Start a new round, whose results are saved as <name>.<id>.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of messages per call of the handler.")] = 100,
    max_attempts: Annotated[int, typer.Option(min=1, help="How often to try a message.")] = 3,
    timeout: Annotated[float | None, duration("Maximum duration of a call of the handler.")] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Afterwards, delete dead letters that have a successful result.")
    ] = False,
    dry_run: DryRun = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Run a handler over old messages again, on Spark; a second run continues with those that have no result."""
    from penstock.spark.runtime.versions import require_pyspark

    require_pyspark()
    from penstock.spark.reprocess import Reprocess, Work
    from penstock.spark.sessions import default_master

    # The handler is imported from the current directory, as with `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    check_master(master)
    selection = _selection(server, stream, archive, (since, until), dead_letters, reason, where)
    place = result_settings(results, server.settings)
    work = Work(handler, place, payload, batch_size, max_attempts, name, None if timeout is None else f"{timeout}s")
    job = Reprocess(selection, work, purge=purge)
    job.check()
    if not dry_run:
        job.check_results()
    # A worker that must be ended leaves its task to be repeated, as on a cluster; by default Spark does not do it here.
    chosen = master or (_LOCAL_RETRY_MASTER if timeout and default_master() == _LOCAL_MASTER else None)
    with stopping("reprocess") as stop:
        total, summary = _run(job, chosen, stop, dry_run=dry_run)
        if stop.is_requested:
            say("reprocess: stopped; run the same command again to continue with the messages that have no result")
        elif as_json:
            print(to_json({"messages": total, "is_dry_run": dry_run, **asdict(summary)}))
        elif dry_run:
            print(f"{total:,} messages\ndry run: nothing was handled, nothing was written")
        else:
            _print_outcome(summary)


def _selection(
    server: Server,
    stream: str,
    archive: str | None,
    span: tuple[int | None, int | None],
    dead_letters: bool,
    reason: str | None,
    where: str | None,
) -> Selection:
    from penstock.spark.reprocess import Archived, SelectedDeadLetters

    if (archive is not None) == dead_letters:
        raise ConfigurationError("choose one source: --archive PATH or --dead-letters")
    if archive is not None:
        if reason is not None:
            raise ConfigurationError("--reason applies only to --dead-letters: archived messages have no reason")
        return Archived(archive, stream, *span, where, server.spark_options)
    if span != (None, None):
        raise ConfigurationError(
            "--since and --until apply only to --archive; select dead letters with --reason or --where"
        )
    return SelectedDeadLetters(server.spark_options, stream, reason, where)


def _run(job: Reprocess, master: str | None, stop: Stopping, *, dry_run: bool) -> tuple[int, Summary]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from penstock.spark.reprocess import CONF, Summary
    from penstock.spark.runtime.master import is_connect

    try:
        with stop.at_once():
            spark = quiet_session("penstock reprocess", master, conf=CONF)
            total = job.count(spark)
        if dry_run:
            return total, Summary()
        say(f"{total:,} messages")
        handled = None if is_connect(spark) else spark.sparkContext.accumulator(0)
        with stop.calling(lambda: job.stop(spark)), nullcontext() if handled is None else _watched(handled, total):
            return total, job.run(spark, handled)
    except (PySparkException, Py4JError) as error:
        if stop.is_requested:
            return 0, Summary()
        if isinstance(error, PySparkException):
            raise query_failed(error) from None
        raise


@contextmanager
def _watched(handled: Any, total: int) -> Iterator[None]:
    """Show on a terminal how many messages were handled."""
    is_over = threading.Event()
    with progress_bar("reprocess", total) as advance:

        def watch() -> None:
            while not is_over.wait(_POLL_S):
                advance(handled.value)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


def _print_outcome(summary: Summary) -> None:
    print(f"done {summary.done:,}, failed {summary.failed:,}; {summary.earlier:,} of them already had a result")
    for failure in summary.failures:
        what = shown(f"{failure.error}: {failure.text} (such as {failure.example})")
        print(f"  failed {failure.count:,}: {what}")
    if summary.earlier_failed:
        print(
            f"  {summary.earlier_failed:,} failed in an earlier run; use --name to start a new round with its "
            "own results"
        )
    if summary.purged:
        print(f"purged {summary.purged:,} dead letters")
