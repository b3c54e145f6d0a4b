"""`penstock replay`: messages out of the archive, the dead letters or a file, into a stream again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.bad_input import bad_input
from penstock.cli.progress_bar import progress_bar
from penstock.cli.quiet_spark import quiet_session
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.spark.replay import Origin, Replay, Span


def replay(
    into: Annotated[str, typer.Option(help="The stream that the messages go to.")],
    url: Annotated[str, typer.Option(envvar="PENSTOCK_URL", help="Where Redis is.")],
    stream: Annotated[str | None, typer.Option(help="The stream that they come from.")] = None,
    archive: Annotated[str | None, typer.Option(help="Out of this archive.")] = None,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Out of the stream's dead letters.")] = False,
    file: Annotated[Path | None, typer.Option(help="Out of this file of JSON lines.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="From a time on: 2026-11-15T12:00Z, or ms.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Before a time.")] = None,
    where: Annotated[str | None, typer.Option(help="A condition in SQL over the columns; needs Spark.")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second at most.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the replay; the same selection has the same one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and write nothing.")] = False,
) -> None:
    """Write messages again, each once; a replay that was stopped goes on when it is started again."""
    from penstock.spark.prerequisites import require_pyspark

    require_pyspark()
    with bad_input():
        job = _prepare(into, url, stream, archive, dead_letters, file, from_, to, where, rate, name)
        counts = job.count()
        done = job.done()
    print(f"replay {job.name}: {counts.wanted:,} messages for stream {into!r}")
    if counts.looping:
        print(f"  {counts.looping:,} left out: a replay has brought them to {into!r} before (header replay_of)")
    if counts.empty:
        print(f"  {counts.empty:,} left out: they have no payload")
    if counts.cut:
        print(f"  {counts.cut:,} without some of their fields, for which there is no room (field dlq_cut)")
    if done:
        print(f"  {min(done, counts.wanted):,} of them were written by an earlier run")
    if dry_run:
        print("dry run: nothing was written")
        return
    _write(job, counts.wanted)


def _prepare(
    into: str,
    url: str,
    stream: str | None,
    archive: str | None,
    dead_letters: bool,
    file: Path | None,
    from_: str | None,
    to: str | None,
    where: str | None,
    rate: float | None,
    name: str | None,
) -> Replay:
    from penstock.spark.archive.read import check_order, moment_ms
    from penstock.spark.replay import Replay, Span, Where

    span = Span(moment_ms("--from", from_), moment_ms("--to", to))
    check_order(span.low, span.high)
    origin = _origin(url, stream, archive, dead_letters, file, span)
    condition = None
    if where is not None:
        condition = Where(where, origin.schema, lambda: quiet_session("penstock replay"))
    return Replay(origin, into, {"url": url}, name=name, where=condition, rate=rate)


def _origin(
    url: str, stream: str | None, archive: str | None, dead_letters: bool, file: Path | None, span: Span
) -> Origin:
    from penstock.spark.link import Link
    from penstock.spark.option_values import Options
    from penstock.spark.replay import ArchiveOrigin, DeadLetterOrigin, FileOrigin

    if sum((archive is not None, dead_letters, file is not None)) != 1:
        raise ConfigurationError("say where to replay from: one of --archive ROOT, --dead-letters and --file PATH")
    if file is not None:
        return FileOrigin(file, span, stream)
    if stream is None:
        raise ConfigurationError("say which stream to replay: --stream NAME")
    if archive is not None:
        return ArchiveOrigin(archive, stream, span)
    return DeadLetterOrigin(Link.from_options(Options({"url": url})), stream, span)


def _write(job: Replay, total: int) -> None:
    with progress_bar("replay", total) as tell:
        result = job.run(tell)
    print(f"{result.added:,} messages written, {result.repeated:,} were there already")
