"""How texts of others are printed: messages, names and errors may hold whatever somebody wrote to Redis.

A terminal carries out control characters, and Rich carries out markup; neither may reach them from a message.
"""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.shown import plain, shown, shown_lines, to_json

__all__ = [
    "LogFormat",
    "cell",
    "log_to_stderr",
    "plain",
    "print_error",
    "print_table",
    "shown",
    "shown_lines",
    "to_json",
    "write_anything",
]


def cell(value: object) -> Text:
    """Return a text of others for a table of Rich, which takes a plain str for markup."""
    return Text(shown(value))


def print_table(table: Table) -> None:
    """Print a table; no cell is cut: ids are there to be copied. Where nobody looks, each row is one line."""
    console = Console()
    width = console.measure(table, options=console.options.update(width=10_000))
    console.width = max(console.width, width.minimum) if console.is_terminal else max(width.maximum, 1)
    console.print(table)


class LogFormat(logging.Formatter):
    """Log lines of a command: what a message brought along is escaped, lines of a traceback stay lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return shown_lines(super().format(record))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Have log records printed to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormat("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def write_anything() -> None:
    """Let standard output and error take every text: what their encoding lacks is written as an escape."""
    if logging.lastResort is not None:  # prints the warnings of commands that log nothing themselves
        logging.lastResort.setFormatter(LogFormat("%(message)s"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def print_error(error: object) -> None:
    """Print what ends a command."""
    print(f"penstock: {shown_lines(error)}", file=sys.stderr)
