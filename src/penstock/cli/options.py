"""The options that several commands take: each is spelled here, once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from penstock import times
from penstock.errors import ConfigurationError
from penstock.shown import shown

_T = TypeVar("_T")
FROM_SETTINGS = ""  # what was not given is what penstock.toml or the environment says
LOOPBACK = "127.0.0.1"


def parsed(parse: Callable[[str], _T], metavar: str) -> dict[str, Any]:
    """Return the arguments of an option whose text `parse` reads; its ConfigurationError is a mistake in the usage."""

    def read(text: str | _T) -> _T:
        if not isinstance(text, str):
            return text  # a default
        try:
            return parse(text)
        except ConfigurationError as error:
            raise typer.BadParameter(str(error)) from None

    return {"parser": read, "metavar": metavar}


def duration(meaning: str, *names: str, default: str | bool = False) -> Any:
    """Return an option that is a duration, in seconds; `default` is how its default is written."""
    return typer.Option(*names, help=meaning, show_default=default, **parsed(times.duration_s, "DURATION"))


def moment(meaning: str, *names: str) -> Any:
    """Return an option that is a moment, in ms since 1970."""
    return typer.Option(*names, help=meaning, **parsed(_moment_ms, "TIME"))


def _moment_ms(text: str) -> int:
    return times.moment_ms(text, time.time_ns() // 1_000_000)


def words(text: str) -> frozenset[str]:
    """Return the words of an option that takes several, with commas between them."""
    return frozenset(filter(None, (word.strip() for word in text.split(","))))


# --- where ----------------------------------------------------------------------------------------


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Return whether an option was given as such, and not by its variable or default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _named(context: typer.Context, value: str) -> str:
    # A variable of a script that is not set must not lead to the server of the settings.
    if not value and is_on_command_line(context, "url"):
        raise typer.BadParameter("must not be empty")
    return value


def url(meaning: str, default: str) -> Any:
    """Return the option --url; `default` says what holds without it and its variable."""
    return typer.Option("--url", envvar="PENSTOCK_URL", callback=_named, help=meaning, show_default=default)


Url = Annotated[str, url("URL of the Redis or Valkey server.", "task_queue.url of the settings")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file.", show_default="$PENSTOCK_CONFIG, or penstock.toml if it exists"),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting that overrides file and environment: --set task_queue.idle_ms=5000. May be repeated."
    ),
]
StreamName = Annotated[str, typer.Argument(help="The stream.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
QueueName = Annotated[
    str, typer.Option("--queue", help="The task queue.", show_default="from the settings, or penstock")
]
Archive = Annotated[
    str, typer.Option("--archive", help="The archive: a path shared by driver and executors, or s3://bucket/folder.")
]
Results = Annotated[
    str | None,
    typer.Option(
        "--results",
        help="Also save results here: fs, postgres, s3, a folder, a URL, or module:name.",
        show_default="[result_backend] of the settings, if given",
    ),
]
Host = Annotated[
    str, typer.Option("--host", help="The address to listen on; 0.0.0.0 accepts connections from other machines.")
]

# --- which ----------------------------------------------------------------------------------------

Since = Annotated[
    int | None, moment("Only from this time: 2026-11-15T12:00Z (UTC), or 2h for two hours ago.", "--since")
]
Until = Annotated[int | None, moment("Only before this time, in the same formats as --since.", "--until")]
Pattern = Annotated[str, typer.Option("--stream", help="Only streams that match this glob pattern.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")]
Kind = Annotated[str | None, typer.Option(help="Only tasks of this kind.")]
Reason = Annotated[
    str | None, typer.Option(help="Only those dead-lettered for this reason, such as max_deliveries or fatal.")
]
Text = Annotated[str | None, typer.Option(help="Only those whose error or payload contains this text.")]

# --- how ------------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="At most this many per second.")]
Once = Annotated[
    bool, typer.Option("--once/--continuous", help="Process everything available and exit, or run until stopped.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write (default: standard output).")]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, help="How many to handle at a time, in each process.")
]
Processes = Annotated[
    int, typer.Option("--processes", "-p", min=1, help="Number of worker processes; more than one are supervised.")
]
Burst = Annotated[bool, typer.Option("--burst", help="Exit when there is no work left.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Restart when a .py or .toml file below the current folder changes.")
]
Grace = Annotated[
    float, duration("How long running handlers may take to finish at shutdown.", "--grace", default="30s")
]
Lease = Annotated[
    float | None, duration("How long an unresponsive worker keeps its tasks.", "--lease", default="from the settings")
]
Every = Annotated[float, duration("How often to sample the server.", "--every", default="2s")]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=0, max=65_535, help="Serve metrics on this port; process n uses port + n."),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host", help="The address to serve metrics on; 0.0.0.0 accepts connections from other machines."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more to standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]


def private(path: str, flags: int) -> int:
    """Open a file, as the `opener` of open(); a new one can be read by its owner only, because it contains payloads."""
    return os.open(path, flags, 0o600)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is done that cannot be undone; end the command if the answer is no."""
    if not yes and not typer.confirm(shown(question), err=True):
        raise typer.Abort
