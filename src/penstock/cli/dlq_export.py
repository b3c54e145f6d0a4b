"""Dead letters as a table in a file: CSV, JSON Lines or Parquet."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from penstock import envelope
from penstock.cli.options import private
from penstock.errors import ConfigurationError
from penstock.ops.model import DeadLetterInfo
from penstock.shown import plain, shown_lines, to_json

COLUMNS = (
    "id", "stream", "source_stream", "source_id", "task_id", "kind", "reason", "error", "error_text", "attempts",
    "deliveries", "dead_at", "group", "consumer", "redrives", "message_id", "fingerprint", "traceback", "payload",
)  # fmt: skip
# What a spreadsheet would carry out, also in the wide forms of East Asian keyboards, behind whatever it skips.
_FORMULA = tuple(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
_BREAKS = ("\t", "\r", "\n")


class Format(StrEnum):
    """How the table is written."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def as_row(letter: DeadLetterInfo) -> dict[str, Any]:
    """Return the columns of a dead letter."""
    row = {"kind": letter.task_kind, "dead_at": letter.dead_at.isoformat(), "payload": plain(payload_of(letter))}
    return {name: row[name] if name in row else getattr(letter, name) for name in COLUMNS}


def payload_of(letter: DeadLetterInfo) -> Any:
    """Return the payload of a message or task; what cannot be decoded is returned as bytes."""
    if letter.payload.value is not None:
        return letter.editable
    return next((field.value for field in letter.fields if field.name == envelope.DATA), None)


def harmless(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    begin = value.lstrip("".join({char for char in value if not char.isprintable() or char.isspace()}))
    return f"'{value}" if value.startswith(_BREAKS) or begin.startswith(_FORMULA) else value


def export(letters: Iterable[DeadLetterInfo], form: Format, path: Path | None) -> int:
    """Write records to a file, or to standard output; return how many."""
    return _WRITERS[form](letters, path)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with open(path, "w", encoding="utf-8", newline="", errors="backslashreplace", opener=private) as file:
        yield file


def _csv(letters: Iterable[DeadLetterInfo], path: Path | None) -> int:
    count, is_terminal = 0, path is None and sys.stdout.isatty()
    with _opened(path) as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for letter in letters:
            row = as_row(letter)
            row["payload"] = to_json(row["payload"])
            cells = [harmless(row[name]) for name in COLUMNS]
            # Programs and files get the cells as they are; a terminal would carry out what is in them.
            table.writerow([shown_lines(cell) if is_terminal and isinstance(cell, str) else cell for cell in cells])
            count += 1
    return count


def _jsonl(letters: Iterable[DeadLetterInfo], path: Path | None) -> int:
    count = 0
    with _opened(path) as file:
        for letter in letters:
            file.write(to_json(as_row(letter)) + "\n")
            count += 1
    return count


def _parquet(letters: Iterable[DeadLetterInfo], path: Path | None) -> int:
    if path is None:
        raise ConfigurationError("Parquet is a binary format: name a file, such as --output dead.parquet")
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError("--format parquet needs pyarrow: pip install 'penstock[spark]'") from error
    types = dict.fromkeys(("attempts", "deliveries", "redrives"), pa.int64())
    schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
    rows = [{**row, "payload": to_json(row["payload"])} for row in map(as_row, letters)]
    with open(path, "wb", opener=private) as file:
        parquet.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    return len(rows)


_WRITERS: dict[Format, Callable[[Iterable[DeadLetterInfo], Path | None], int]] = {
    Format.CSV: _csv,
    Format.JSONL: _jsonl,
    Format.PARQUET: _parquet,
}
