"""`penstock report`: a page about a stream and a time."""

from __future__ import annotations

import secrets
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from penstock import ids
from penstock.cli.command import Server
from penstock.cli.options import AsJson, Until, moment, private
from penstock.cli.shown import say
from penstock.cli.spark_session import Master, check_master, query_failed, quiet_session
from penstock.cli.stopping import stopping
from penstock.errors import ConfigurationError
from penstock.shown import to_json

_A_DAY = timedelta(days=1)


def report(
    server: Server,
    stream: Annotated[str, typer.Option(help="The stream; for a task queue with its results, <queue>.tasks.")],
    since: Annotated[int | None, moment("From this time: 2026-11-15T12:00Z (UTC), or 2h (default: 24h ago).")] = None,
    until: Until = None,
    archive: Annotated[str | None, typer.Option(help="Also read this archive.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.", show_default="<stream>-report.html")
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(help="Add links for dead letters, groups and entries to the dashboard at this address."),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report: throughput, failure rate, groups, latency, attempts, dead letters, kinds, payloads."""
    from penstock.spark.runtime.versions import require_pyspark

    require_pyspark()
    from pyspark.errors import PySparkException

    from penstock.spark.archive.state import safe_name
    from penstock.spark.report import ReportQuery, Target, Window, render
    from penstock.spark.report.page import check_dashboard

    now = datetime.now(UTC)
    check_master(master)
    check_dashboard(dashboard)
    window = Window.of(
        now - _A_DAY if since is None else ids.moment(since), now if until is None else ids.moment(until), now
    )
    target = Target(stream, server.spark_options, archive)
    target.states()  # a stream that does not exist is an error before Spark starts
    file = _writable(Path(f"{safe_name(stream)}-report.html") if output is None else output)
    with stopping("report") as stop:
        try:
            with stop.at_once():
                spark = quiet_session("penstock report", master)
                figures = ReportQuery(spark, target, window).figures(lambda what: say(f"reading {what} ..."))
        except PySparkException as error:
            raise query_failed(error) from None
        _write(file, render(figures, target, window, int(now.timestamp() * 1000), dashboard))
        messages, dead = figures.messages.whole.count, figures.dead.whole.count
        counts = {"file": file, "messages": messages, "dead_letters": dead}
        print(to_json(counts) if as_json else f"{file}: {messages:,} messages, {dead:,} dead letters")


def _writable(file: Path) -> Path:
    """Return the path; raise ConfigurationError if no file can be written there. Nothing stays there yet."""
    folder = file.absolute().parent
    try:
        if file.is_dir():
            raise ConfigurationError(f"--output {file} is a folder; name a file")
        if not folder.is_dir():
            raise ConfigurationError(f"--output {file}: folder {folder} does not exist")
        probe = _draft(file)
        probe.touch(exist_ok=False)  # permissions alone do not decide it
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(f"--output {file} cannot be written: {error.strerror or error}") from None
    return file


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name[:200]}.{secrets.token_hex(4)}")


def _write(file: Path, page: str) -> None:
    """Write the page; readers see the old file or the new one, never a part."""
    draft = _draft(file)
    try:
        with open(draft, "x", encoding="utf-8", opener=private) as written:
            written.write(page)
        if file.exists():
            shutil.copymode(file, draft)
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigurationError(f"--output {file} cannot be written: {error}") from None
