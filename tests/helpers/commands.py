"""`penstock` in this process: how a command ends, and what it has printed."""

from __future__ import annotations

from unittest import mock

import typer.main
import typer.testing

from penstock.cli.app import app

# Made once: typer's runner makes the tree of all commands for each call, which takes longer than most of the calls.
TREE = typer.main.get_command(app)


def call(*words: str, text: str = "") -> typer.testing.Result:
    """Runs a command with a text at its standard input; what it raised, other than its end, is in the result."""
    with mock.patch.object(typer.testing, "_get_command", return_value=TREE):
        return typer.testing.CliRunner().invoke(app, words, input=text)


def run(*words: str, text: str = "") -> typer.testing.Result:
    """Runs a command as above; raises what it raised, other than its end."""
    result = call(*words, text=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
