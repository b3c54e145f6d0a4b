"""The root of the command line: its commands and what holds for all of them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import pipeline
from penstock.cli.demo import demo
from penstock.errors import PenstockError

app = typer.Typer(
    help="Reliable work queues on Redis Streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it prints local variables, and those may hold passwords
)
app.command()(demo)
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
    """Run the command that the arguments name; an error of Penstock is told in one line and ends with code 1."""
    try:
        app(prog_name="penstock")
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        raise SystemExit(1) from error
