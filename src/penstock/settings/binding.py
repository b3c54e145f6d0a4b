"""Binds a TOML table to a type; an error names the place, the key, its value and what was expected."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from penstock.errors import SettingsError
from penstock.plugins import suggestion
from penstock.settings.masking import masked

_T = TypeVar("_T")
_Path = tuple[str | int, ...]
_FLAGS: Final = dict.fromkeys(("true", "yes", "1", "on"), True) | dict.fromkeys(("false", "no", "0", "off"), False)
# What msgspec says, and how we say it; anything else is passed on in its own words.
_REASONS: Final = (
    (r"Expected `int(?: \| null)?`,.*", "must be a whole number"),
    (r"Expected `float(?: \| null)?`,.*", "must be a number"),
    (r"Expected `str(?: \| null)?`,.*", "must be a text"),
    (r"Expected `bool(?: \| null)?`,.*", "must be true or false"),
    (r"Expected `array(?: \| null)?`,.*", "must be a list"),
    (r"Expected `object(?: \| null)?`,.*", "must be a table"),
    (r"Expected `(?:int|float)` >= (\S+)", r"must be \1 or more"),
    (r"Expected `(?:int|float)` <= (\S+)", r"must be \1 or less"),
    (r"Object missing required field `(.*)`", r"lacks the key '\1'"),
    (r"Object contains unknown field `(.*)`", r"has an unknown key '\1'"),
    (r"Expected `str` (?:of length >= 1|matching regex '\\\\S')", "must not be empty"),
)
_AT: Final = re.compile(r" - at `\$\.?([^.\[`]*)(.*)`$")
_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_MULTI_LINE: Final = re.compile(r'"""|\'\'\'')


def bind(table: object, kind: type[_T], *, where: Callable[[str], str]) -> _T:
    """Return the table as an instance of `kind`: a dataclass or msgspec Struct, whose annotations msgspec checks.

    `where(key)` names a key with its place ("penstock.toml:3: task_queue.idle_ms"), `where("")` the table itself.

    Of a table inside the table only a Struct with `forbid_unknown_fields` refuses unknown keys; bind it by itself for
    a suggestion.

    Raises: SettingsError for an unknown or missing key, a wrong value, and what `kind` raises as a ValueError.
    """
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where('')} must be a table, not {masked('', table)!r}")
    for key in table:
        check_known(key, get_type_hints(kind), where(key))
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(_explained(str(error), table, kind, where)) from None


def _explained(said: str, table: Mapping[str, Any], kind: type, where: Callable[[str], str]) -> str:
    name, at = where(""), _AT.search(said)
    if at is not None and at[1] in table:
        key, below, said = at[1], at[2], said[: at.start()]
        name = f"{where(key)}{below}" if below else f"{where(key)}={masked(key, table[key])!r}"
        if said.startswith("Invalid enum value") and not below:
            return f"{name} must be one of {', '.join(_choices(get_type_hints(kind)[key]))}"
    for pattern, reason in _REASONS:
        if found := re.fullmatch(pattern, said):
            return f"{name} {found.expand(reason)}"
    return f"{name}: {said}"


def _choices(hint: object) -> list[str]:
    """Return the words of a Literal, which may be in a union with None."""
    words = [word for part in get_args(hint) for word in (get_args(part) or [part])]
    return [str(word) for word in words if word is not type(None)]


def check_known(key: str, known: Iterable[str], name: str, hint: str = "") -> None:
    """Raise SettingsError for a key that is not known, with the one that it was perhaps meant to be."""
    if key not in (names := list(known)):
        raise SettingsError(f"{name} is unknown: {suggestion(key, names)}{hint}")


def parse_text(text: str, kind: object) -> Any:
    """Return the value of type `kind` that a text from the environment or the command line stands for.

    A bool has many spellings; for other types TOML decides. A text that cannot be read is returned unchanged.
    """
    if kind is str:
        return text
    if kind is bool:
        return _FLAGS.get(text.strip().lower(), text)
    try:
        if kind is int:
            return int(text.replace("_", ""))
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except ValueError:
        return text


def lines_of(text: str) -> dict[_Path, int]:
    """Return the line of each key and header of a TOML text, which the parser does not tell.

    The second `[[sink]]` has the path ("sink", 1). What stands in an inline table is not found.
    """
    found: dict[_Path, int] = {}
    counts: dict[_Path, int] = {}
    table: _Path = ()
    is_inside_text = False
    for number, line in enumerate(text.splitlines(), 1):
        was_inside_text = is_inside_text
        if len(_MULTI_LINE.findall(line)) % 2:
            is_inside_text = not is_inside_text
        if was_inside_text:
            continue
        if header := _HEADER.fullmatch(line):
            table = ()
            *above, last = _words(header[2])
            for word in above:  # [sink.options] belongs to the last [[sink]] before it
                table = (*table, word)
                table += (counts[table],) if table in counts else ()
            table = (*table, last)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault((*table, *_words(assignment[1])), number)
    return found


def nearest_line(lines: Mapping[_Path, int], path: _Path) -> int | None:
    """Return the line of a key, or of the innermost table around it whose line is known."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), None)


def _words(dotted: str) -> tuple[str, ...]:
    return tuple(word.strip().strip("\"'") for word in dotted.split("."))
