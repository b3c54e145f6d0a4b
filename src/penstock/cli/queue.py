"""`penstock queue`: commands for message queues, each in a module of its own."""

from __future__ import annotations

import typer

from penstock.cli.queue_import import import_

queue_app = typer.Typer(help="Message queues.", no_args_is_help=True)
queue_app.command("import")(import_)
