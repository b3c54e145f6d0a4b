"""Tables of a pipeline file become values: known keys, right types, and the place of whatever is wrong."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import ConfigurationError

_Value = TypeVar("_Value")
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-\"]+)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*[\"']?([\w\-]+)[\"']?\s*(?:\.|=)")
_NAMES: dict[Any, str] = {str: "a text", int: "a whole number", bool: "true or false"}


class Places:
    """Knows in which line of a TOML text a table or a key stands: the parser itself does not tell."""

    def __init__(self, name: str, text: str = "") -> None:
        self._name = name
        self._lines: dict[tuple[str, str], int] = {}
        counts: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.match(line):
                table = header[2].strip('"')
                if header[1] == "[[":
                    counts[table] = counts.get(table, 0) + 1
                    table = f"{table} {counts[table]}"
                self._lines[table, ""] = number
            elif key := _KEY.match(line):
                self._lines.setdefault((table, key[1]), number)

    def of(self, table: str, key: str = "") -> str:
        """Return the name of the file and the line, as far as it is known, and the table."""
        line = self._lines.get((table, key)) or self._lines.get((table or key, ""))
        where = f"{self._name}:{line}" if line else self._name
        return f"{where}: [{table}]" if table else where


def build(kind: type[_Value], table: object, name: str, places: Places, aside: Iterable[str] = ()) -> _Value:
    """Make a dataclass of a table; raise ConfigurationError with the place of the first thing that is wrong.

    `aside` are keys that somebody else takes out of the table.
    """
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{places.of(name)} must be a table, not {table!r}")
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {key: value for key, value in table.items() if key not in set(aside)}
    refuse_unknown(given, [*known, *aside], name, places)
    hints = typing.get_type_hints(kind)
    values = {key: _typed(value, hints[key], f"{places.of(name, key)} {key}") for key, value in given.items()}
    for key, field in known.items():
        if key not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigurationError(f"{places.of(name)} lacks the key {key!r}")
    try:
        return kind(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{places.of(name)} {error}") from None


def refuse_unknown(table: Mapping[str, object], known: Iterable[str], name: str, places: Places) -> None:
    """Raise ConfigurationError for the first key that is not known, with the one that was perhaps meant."""
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise ConfigurationError(f"{places.of(name, key)} has an unknown key {key!r}; {hint}")


def _typed(value: object, hint: Any, where: str) -> object:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    wanted = [choice for choice in choices if choice is not types.NoneType]
    kind = wanted[0]
    if kind is DeadLetterLimits:
        return _limits(value, where)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _texts(value, where)
    if origin is not None and issubclass(origin, Mapping):
        return _options(value, where)
    if origin is typing.Literal:
        kind = str
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigurationError(f"{where} = {value!r} must be {_NAMES.get(kind, kind.__name__)}")
    return value


def _limits(value: object, where: str) -> DeadLetterLimits:
    try:
        return DeadLetterLimits.of(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _texts(value: object, where: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"{where} = {value!r} must be a text or a list of texts")
    return tuple(texts)


def _flat(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    # TOML makes tables of a key with dots that is not quoted, such as spark.executor.memory.
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _options(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where} must be a table of options, not {value!r}")
    made = {}
    for name, option in _flat(value):
        if not isinstance(option, str | int | float | bool):
            raise ConfigurationError(f"{where}.{name} = {option!r} must be a text, a number, true or false")
        made[name] = str(option).lower() if isinstance(option, bool) else str(option)
    return made
