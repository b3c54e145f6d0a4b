"""`penstock report`: a page about a stream and a time."""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.bad_input import bad_input, query_failed
from penstock.cli.queue_options import moment
from penstock.cli.quiet_spark import quiet_session
from penstock.cli.shown import shown
from penstock.cli.spark_master import Master, check_master
from penstock.errors import ConfigurationError


def report(
    stream: Annotated[str, typer.Option(help="The stream; <queue>.tasks for a task queue with its results.")],
    url: Annotated[str, typer.Option(envvar="PENSTOCK_URL", help="Where Redis is.")],
    since: Annotated[str, typer.Option(help="From when on: ISO 8601, or '24h' for 24 hours ago.")] = "24h",
    until: Annotated[str | None, typer.Option(help="Before when; now if left out.")] = None,
    archive: Annotated[str | None, typer.Option(help="Read this archive as well.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file; <stream>-report.html if left out.")] = None,
    master: Master = None,
) -> None:
    """Write one HTML file: throughput, latency, attempts, dead letters by cause, slowest kinds, biggest payloads."""
    from penstock.spark.prerequisites import require_pyspark

    require_pyspark()
    from pyspark.errors import PySparkException

    from penstock.spark.archive.layout import safe_name
    from penstock.spark.report import Study, Subject, Window, render

    now = datetime.now(UTC)
    with bad_input():
        check_master(master)
        window = Window.of(moment(since, UTC), now if until is None else moment(until, UTC), now)
        subject = Subject(stream, {"url": url}, archive)
        subject.states()  # a stream that does not exist is told before Spark starts
        file = _writable(Path(f"{safe_name(stream)}-report.html") if out is None else out)
    spark = quiet_session("penstock report", master)
    try:
        figures = Study(spark, subject, window).figures(
            lambda what: print(f"reading {shown(what)} ...", file=sys.stderr)
        )
    except PySparkException as error:
        raise query_failed(error) from None
    _write(file, render(figures, subject, window, int(now.timestamp() * 1000)))
    print(f"{file}: {figures.messages.whole.count:,} messages, {figures.dead.whole.count:,} dead letters")


def _writable(file: Path) -> Path:
    """Return the path; raise ConfigurationError if no file can be written there. Nothing stays there yet."""
    folder = file.absolute().parent
    try:
        if file.is_dir():
            raise ConfigurationError(f"--out {file} is a folder: name a file")
        if not folder.is_dir():
            raise ConfigurationError(f"--out {file}: there is no folder {folder}")
        probe = _draft(file)
        probe.touch(exist_ok=False)  # rights alone do not tell it
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(f"--out {file} cannot be written: {error.strerror or error}") from None
    return file


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name[:200]}.{secrets.token_hex(4)}")


def _write(file: Path, page: str) -> None:
    """Write the page; whoever reads the file sees the old one or the new one."""
    draft = _draft(file)
    with bad_input():
        try:
            draft.write_text(page, encoding="utf-8")
            draft.replace(file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise ConfigurationError(f"--out {file} cannot be written: {error}") from None
