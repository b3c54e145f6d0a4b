"""The root of the command line: its commands and what holds for all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import pipeline
from penstock.cli.acl import acl
from penstock.cli.archive import archive
from penstock.cli.config import config
from penstock.cli.dashboard import dashboard
from penstock.cli.demo import demo
from penstock.cli.exporter import exporter
from penstock.cli.queue import queue_app
from penstock.cli.replay import replay
from penstock.cli.report import report
from penstock.cli.reprocess import reprocess
from penstock.cli.shown import print_error, write_anything
from penstock.cli.task import task_app
from penstock.cli.worker import worker
from penstock.errors import PenstockError, SettingsError

app = typer.Typer(
    help="Reliable work queues on Redis Streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it prints local variables, and those may hold passwords
)
app.command()(demo)
app.command()(worker)
app.command()(exporter)
app.command()(dashboard)
app.add_typer(task_app, name="task")
app.add_typer(queue_app, name="queue")
app.add_typer(config, name="config")
app.command()(acl)
app.command()(replay)
app.command()(report)
app.command()(reprocess)
app.add_typer(archive, name="archive")
app.add_typer(pipeline.app, name="pipeline")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Reliable work queues on Redis Streams."""


def run() -> None:
    """Run the command that the arguments name; an error of Penstock is told in one line.

    It ends with code 1, or with 2, as for a mistake in the arguments, if the settings are wrong.
    """
    write_anything()
    try:
        app(prog_name="penstock")
    except PenstockError as error:
        print_error(error)
        raise SystemExit(2 if isinstance(error, SettingsError) else 1) from error
