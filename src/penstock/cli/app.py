"""The root of the command line: its commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import archive, balance, config, dlq, group, pending, pipeline, queue, schedule, stream, task
from penstock.cli.acl import acl
from penstock.cli.bench import bench
from penstock.cli.command import command
from penstock.cli.consume import consume
from penstock.cli.dashboard import dashboard
from penstock.cli.demo.command import demo
from penstock.cli.exporter import exporter
from penstock.cli.health import doctor, health
from penstock.cli.replay import replay
from penstock.cli.report import report
from penstock.cli.reprocess import reprocess
from penstock.cli.retention import retention
from penstock.cli.shown import write_anything
from penstock.cli.top import top
from penstock.cli.worker import worker
from penstock.cli.workers import workers

app = typer.Typer(
    help="Reliable work queues on Redis Streams.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it prints local variables, and those may hold passwords
)
_COMMANDS: dict[str, dict[str, typer.Typer | Callable[..., None]]] = {
    "Messages and tasks": {
        "stream": stream.app,
        "group": group.app,
        "pending": pending.app,
        "dlq": dlq.app,
        "queue": queue.app,
        "task": task.app,
        "schedule": schedule.app,
        "balance": balance.app,
    },
    "Workers": {"worker": worker, "consume": consume, "workers": workers},
    "Operations": {
        "top": top,
        "dashboard": dashboard,
        "health": health,
        "doctor": doctor,
        "retention": retention,
        "exporter": exporter,
        "acl": acl,
        "config": config.app,
        "bench": bench,
        "demo": demo,
    },
    "Data pipelines": {
        "pipeline": pipeline.app,
        "archive": archive.app,
        "replay": replay,
        "reprocess": reprocess,
        "report": report,
    },
}
_LONG_RUNNING = {"worker", "consume"}  # they log what happens
for _panel, _commands in _COMMANDS.items():
    for _name, _made in _commands.items():
        if isinstance(_made, typer.Typer):
            app.add_typer(_made, name=_name, rich_help_panel=_panel)
        else:
            level = logging.INFO if _name in _LONG_RUNNING else logging.WARNING
            command(app, _name, logs=level, rich_help_panel=_panel)(_made)


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
    """Run the command that the arguments name."""
    write_anything()
    app(prog_name="penstock")
