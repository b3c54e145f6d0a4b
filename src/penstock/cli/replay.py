"""`penstock replay`: messages out of the archive, the dead letters or a file, into a stream again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import Server
from penstock.cli.options import AsJson, DryRun, Rate, Since, Until
from penstock.cli.shown import progress_bar, say
from penstock.cli.spark_session import quiet_session
from penstock.cli.stopping import Stopping, stopping
from penstock.errors import ConfigurationError
from penstock.shown import to_json

if TYPE_CHECKING:
    from penstock.spark.replay import Replay, ReplayOrigin, Span


def replay(
    server: Server,
    into: Annotated[str, typer.Option(help="The stream to write to.")],
    stream: Annotated[str | None, typer.Option(help="The stream that the messages come from.")] = None,
    archive: Annotated[str | None, typer.Option(help="Read from this archive.")] = None,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Read from the stream's dead letters.")] = False,
    file: Annotated[Path | None, typer.Option(help="Read from this file of JSON lines.")] = None,
    since: Since = None,
    until: Until = None,
    where: Annotated[str | None, typer.Option(help="An SQL condition on the columns; needs Spark.")] = None,
    rate: Rate = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the replay (default: derived from the selection).")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write messages into a stream again, each exactly once; a stopped replay continues when it is run again."""
    from penstock.spark.runtime.versions import require_pyspark

    require_pyspark()
    from penstock.spark.archive.read import check_order
    from penstock.spark.replay import Replay, Span, Where

    check_order(since, until)
    origin = _origin(server, stream, archive, dead_letters, file, Span(since, until))
    condition = None
    if where is not None:
        condition = Where(where, origin.schema, lambda: quiet_session("penstock replay"))
    job = Replay(origin, into, server.spark_options, name=name, where=condition, rate=rate)
    with stopping("replay") as stop:
        _run(job, into, stop, is_dry=dry_run, as_json=as_json)


def _run(job: Replay, into: str, stop: Stopping, *, is_dry: bool, as_json: bool) -> None:
    with stop.at_once():
        counts = job.count()
    done = min(job.done(), counts.wanted)
    say(f"replay {job.name}: {counts.wanted:,} messages for stream {into!r}")
    if counts.looping:
        say(f"  {counts.looping:,} skipped: an earlier replay wrote them to {into!r} (header replay_of)")
    if counts.empty:
        say(f"  {counts.empty:,} skipped: they have no payload, or none that is authentic")
    if counts.cut:
        say(f"  {counts.cut:,} without some of their fields, which were cut because of their size (field dlq_cut)")
    if done:
        say(f"  {done:,} of them were written by an earlier run")
    outcome = {"name": job.name, "wanted": counts.wanted, "added": 0, "repeated": done, "is_dry_run": is_dry}
    if is_dry:
        print(to_json(outcome) if as_json else "dry run: nothing was written")
        return
    with stop.calling(job.stop), progress_bar("replay", counts.wanted) as advance:
        result = job.run(advance)
    if stop.is_requested:
        say("replay: stopped; run the same command again to continue")
    outcome |= {"added": result.added, "repeated": result.repeated}
    text = f"wrote {result.added:,} messages; {result.repeated:,} were already there"
    print(to_json(outcome) if as_json else text)


def _origin(
    server: Server, stream: str | None, archive: str | None, dead_letters: bool, file: Path | None, span: Span
) -> ReplayOrigin:
    from penstock.spark.replay import ArchiveOrigin, DeadLetterOrigin, FileOrigin
    from penstock.spark.runtime.link import Link
    from penstock.spark.runtime.option_values import Options

    if sum((archive is not None, dead_letters, file is not None)) != 1:
        raise ConfigurationError("choose one source: --archive PATH, --dead-letters or --file PATH")
    link = Link.from_options(Options(server.spark_options))
    if file is not None:
        return FileOrigin(file, span, stream, link)
    if stream is None:
        raise ConfigurationError("--stream NAME is required with --archive and --dead-letters")
    if archive is not None:
        return ArchiveOrigin(archive, stream, span, link)
    return DeadLetterOrigin(link, stream, span)
