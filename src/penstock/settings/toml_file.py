"""Reads penstock.toml, and finds the line on which each value stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import SettingsError
from penstock.settings.origin import Given, in_file

_HEADER = re.compile(r"\s*\[\s*([^\[\]#]+?)\s*\]\s*(?:#.*)?")
_ASSIGNMENT = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_MULTI_LINE = re.compile(r'"""|\'\'\'')


def read(path: Path) -> list[Given]:
    """Return every value of the file, with its place; raise SettingsError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is no TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    lines = lines_of(text)
    return [Given(name, value, in_file(path, _nearest(lines, name))) for name, value in _values(content, ())]


def _values(table: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        name = (*above, key)
        # Two levels are tables of ours, a third one belongs to a provider: what is below, it takes as it is.
        if isinstance(value, dict) and len(name) <= 2:
            yield from _values(value, name)
            if not value and len(name) == 1:
                yield name, value
        else:
            yield name, value


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key and of each header that can be told without parsing TOML in full."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    is_inside_text = False
    for number, line in enumerate(text.splitlines(), 1):
        was_inside_text = is_inside_text
        if len(_MULTI_LINE.findall(line)) % 2:
            is_inside_text = not is_inside_text
        if was_inside_text:
            continue
        if header := _HEADER.fullmatch(line):
            table = _words(header[1])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault((*table, *_words(assignment[1])), number)
    return found


def _words(dotted: str) -> tuple[str, ...]:
    return tuple(word.strip().strip("\"'") for word in dotted.split("."))


def _nearest(lines: dict[tuple[str, ...], int], name: tuple[str, ...]) -> int | None:
    """Return the line of the key, or of the table around it if it stands in an inline table."""
    for length in range(len(name), 0, -1):
        if name[:length] in lines:
            return lines[name[:length]]
    return None
