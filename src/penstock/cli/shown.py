"""How texts of others are printed: messages, names and errors may contain anything.

A terminal carries out control characters, and Rich carries out markup; neither may reach them from a message.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias

from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from penstock.shown import plain, shown, shown_lines, to_json
from penstock.units import duration, moment, size

_NUMBERS = {int, float}
WIDE = {"error", "payload", "what", "fix"}  # columns that may be wrapped on a terminal


def cell(value: object) -> Text:
    """Return a text of others for a table of Rich, which takes a plain str for markup."""
    return Text(shown(value))


# --- printing ---------------------------------------------------------------------------------------

_is_quiet = False


def say(text: object, *, is_needed: bool = False) -> None:
    """Print a message about a command, to standard error; what it was asked for goes to standard output.

    A quiet command prints only what is needed: without it, the command would be of no use.
    """
    if is_needed or not _is_quiet:
        _write_line(shown_lines(text))


def print_status(text: object) -> None:
    """Print what a command that runs until it is stopped does in the ordinary course of things: it has nothing else."""
    if not _is_quiet:
        sys.stdout.write(f"{shown_lines(text)}\n")
        sys.stdout.flush()


def print_error(error: object) -> None:
    """Print what ends a command."""
    _write_line(f"penstock: {shown_lines(error)}")


def _write_line(text: str) -> None:
    # At once, with its end: several processes of one command may share standard error.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]
"""The columns of a table: by title the attribute or key of a row, or what makes the cell of a row."""


def print_rows(rows: Iterable[object], columns: Columns, *, as_json: bool, none: str = "") -> None:
    """Print rows as a table, or each as a line of JSON with everything in it; `none` is said if there are no rows."""
    if as_json:
        for row in rows:
            print(to_json(row))
        return
    cells = [[_value(row, column) for column in columns.values()] for row in rows]
    if cells:
        print_table(_table(columns, cells))
    elif none:
        say(none)


def _table(titles: Iterable[str], cells: list[list[object]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, values in zip(titles, zip(*cells, strict=True), strict=True):
        is_number = all(value is None or type(value) in _NUMBERS for value in values)
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(title, no_wrap=title not in WIDE, overflow="fold", justify=justify)
    for row in cells:
        table.add_row(*(cell(_in_a_table(value)) for value in row))
    return table


def _value(row: object, column: str | Callable[[Any], object]) -> object:
    if callable(column):
        return column(row)
    return row[column] if isinstance(row, dict) else getattr(row, column)


def print_fields(value: object, *, as_json: bool) -> None:
    """Print one value, as lines of names and values or as one line of JSON."""
    if as_json:
        print(to_json(value))
        return
    named = _readable(plain(value))
    lists = {name: item for name, item in named.items() if _is_table(item)}
    width = max(map(len, named), default=0) + 2
    for name, item in named.items():
        if name not in lists:
            text = to_json(item) if isinstance(item, dict | list) else _in_a_table(item)
            print(f"{shown(name):<{width}}{shown_lines(text, indent=width)}")
    for name, rows in lists.items():
        print(f"\n{shown(name)}")
        readable = [_readable(row) for row in rows]
        print_table(_table(readable[0], [[_flat(item) for item in row.values()] for row in readable]))


def _readable(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for people: durations, sizes and times that JSON has as numbers, by the units in their names."""
    found: dict[str, Any] = {}
    for name, value in named.items():
        for unit, show in _UNITS.items():
            stem = name.removesuffix(unit)
            if stem != name and stem not in named:
                found[stem] = None if value is None else show(value)
                break
        else:
            found[name] = value
    return found


def _moment(value: str | float) -> str:
    return moment(datetime.fromisoformat(value) if isinstance(value, str) else value)


# The first that fits is taken. Of a moment, the name says that it is one.
_UNITS: Mapping[str, Callable[[Any], str]] = {
    "_at": _moment, "_ms": lambda ms: duration(ms / 1000), "_s": duration, "_bytes": size,
}  # fmt: skip


def _is_table(item: object) -> bool:
    return (
        isinstance(item, list)
        and bool(item)
        and all(isinstance(row, dict) and row.keys() == item[0].keys() for row in item)
    )


def _flat(item: object) -> object:
    return to_json(item) if isinstance(item, dict | list) else item


def span(seconds: float | None) -> str | None:
    """Return a duration for a table; JSON has the number."""
    return None if seconds is None else duration(seconds)


def span_ms(ms: float | None) -> str | None:
    """Return a duration in ms for a table."""
    return None if ms is None else duration(ms / 1000)


def _in_a_table(value: object) -> object:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if isinstance(value, datetime) else value


def print_table(table: Table) -> None:
    """Print a table; no cell is cut: ids are there to be copied. Where nobody looks, each row is one line."""
    console = Console()
    width = console.measure(table, options=console.options.update(width=10_000))
    console.width = max(console.width, width.minimum) if console.is_terminal else max(width.maximum, 1)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get() if console.is_terminal else "\n".join(map(str.rstrip, captured.get().split("\n")))
    sys.stdout.write(lines)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the body runs, on a terminal; yield the function that takes how far it has come."""
    console = Console(file=sys.stderr)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    is_off = _is_quiet or not console.is_terminal
    with Progress(TextColumn(label), *columns, console=console, disable=is_off) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=min(done, total))


# --- logging ----------------------------------------------------------------------------------------


class LogFormat(logging.Formatter):
    """Log lines of a command: what a message brought along is escaped, lines of a traceback stay lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return shown_lines(super().format(record))


@contextmanager
def verbosity(level: int, *, is_verbose: bool, is_quiet: bool) -> Iterator[None]:
    """Set what is logged to standard error while a command runs; a quiet one logs errors and prints no messages."""
    global _is_quiet  # noqa: PLW0603 - one command runs in a process
    logger, root, handler = logging.getLogger("penstock"), logging.getLogger(), logging.StreamHandler()
    handler.setFormatter(LogFormat("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before, _is_quiet = (logger.level, root.level), is_quiet
    chosen = logging.DEBUG if is_verbose else logging.ERROR if is_quiet else level
    logger.setLevel(chosen)
    if chosen < logging.WARNING:  # warnings are printed in any case, as they are
        root.setLevel(logging.INFO)  # what handlers of users log
        root.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before[0])
        root.setLevel(before[1])
        root.removeHandler(handler)
        _is_quiet = False


def write_anything() -> None:
    """Let standard output and error take every text: what their encoding lacks is written as an escape."""
    if logging.lastResort is not None:  # prints the warnings of commands that log nothing themselves
        logging.lastResort.setFormatter(LogFormat("%(message)s"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
