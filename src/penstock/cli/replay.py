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
    into: Annotated[str, typer.Option(help="The stream that the messages go to.")],
    stream: Annotated[str | None, typer.Option(help="The stream that they come from.")] = None,
    archive: Annotated[str | None, typer.Option(help="Out of this archive.")] = None,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Out of the stream's dead letters.")] = False,
    file: Annotated[Path | None, typer.Option(help="Out of this file of JSON lines.")] = None,
    since: Since = None,
    until: Until = None,
    where: Annotated[str | None, typer.Option(help="A condition in SQL over the columns; needs Spark.")] = None,
    rate: Rate = None,
    name: Annotated[str | None, typer.Option(help="Name of the replay; the same selection has the same one.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write messages into a stream again, each once; a replay that was stopped continues when it is started again."""
    from penstock.spark.runtime.prerequisites import require_pyspark

    require_pyspark()
    from penstock.spark.archive.read import check_order
    from penstock.spark.replay import Replay, Span, Where

    check_order(since, until)
    origin = _origin(server.url, stream, archive, dead_letters, file, Span(since, until))
    condition = None
    if where is not None:
        condition = Where(where, origin.schema, lambda: quiet_session("penstock replay"))
    job = Replay(origin, into, {"url": server.url}, name=name, where=condition, rate=rate)
    with stopping("replay") as stop:
        _run(job, into, stop, is_dry=dry_run, as_json=as_json)


def _run(job: Replay, into: str, stop: Stopping, *, is_dry: bool, as_json: bool) -> None:
    with stop.at_once():
        counts = job.count()
    done = min(job.done(), counts.wanted)
    say(f"replay {job.name}: {counts.wanted:,} messages for stream {into!r}")
    if counts.looping:
        say(f"  {counts.looping:,} left out: a replay has brought them to {into!r} before (header replay_of)")
    if counts.empty:
        say(f"  {counts.empty:,} left out: they have no payload")
    if counts.cut:
        say(f"  {counts.cut:,} without some of their fields, for which there is no room (field dlq_cut)")
    if done:
        say(f"  {done:,} of them were written by an earlier run")
    told = {"name": job.name, "wanted": counts.wanted, "added": 0, "repeated": done, "dry_run": is_dry}
    if is_dry:
        print(to_json(told) if as_json else "dry run: nothing was written")
        return
    with stop.calling(job.stop), progress_bar("replay", counts.wanted) as tell:
        result = job.run(tell)
    if stop.is_asked:
        say("replay: stopped; started again, it continues")
    told |= {"added": result.added, "repeated": result.repeated}
    text = f"{result.added:,} messages written, {result.repeated:,} were there already"
    print(to_json(told) if as_json else text)


def _origin(
    url: str, stream: str | None, archive: str | None, dead_letters: bool, file: Path | None, span: Span
) -> ReplayOrigin:
    from penstock.spark.replay import ArchiveOrigin, DeadLetterOrigin, FileOrigin
    from penstock.spark.runtime.link import Link
    from penstock.spark.runtime.option_values import Options

    if sum((archive is not None, dead_letters, file is not None)) != 1:
        raise ConfigurationError("say where to replay from: one of --archive PATH, --dead-letters and --file PATH")
    if file is not None:
        return FileOrigin(file, span, stream)
    if stream is None:
        raise ConfigurationError("say which stream to replay: --stream NAME")
    if archive is not None:
        return ArchiveOrigin(archive, stream, span)
    return DeadLetterOrigin(Link.from_options(Options({"url": url})), stream, span)
