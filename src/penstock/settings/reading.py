"""Turns what was given into checked values: types, ranges, unknown names, files with secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from penstock.errors import SettingsError
from penstock.plugins import suggestion
from penstock.settings.environment import guessed
from penstock.settings.masking import READABLE_FROM_FILE, masked
from penstock.settings.origin import Given, Origin
from penstock.settings.tables import TABLES, Key

_FLAGS: Final = {
    "true": True,
    "yes": True,
    "1": True,
    "on": True,
    "false": False,
    "no": False,
    "0": False,
    "off": False,
}
_LARGEST_SECRET = 65_536


def checked(given: Given, providers: dict[str, list[str]]) -> Given:
    """Return the value in its right type, under its right name; raise SettingsError, naming the place."""
    table, *rest = given.path
    if table not in TABLES:
        raise SettingsError(f"{given.origin}: the table [{table}] is unknown: {suggestion(table, sorted(TABLES))}")
    if not rest:
        if given.value == {}:
            return given
        raise SettingsError(f"{given.origin}: {table} must be a table: write [{table}]")
    if len(rest) == 1:
        return _of_table(given, table, rest[0], providers[table])
    return _of_provider(given, table, rest[0], rest[1], providers[table])


def _of_table(given: Given, table: str, name: str, providers: list[str]) -> Given:
    known = TABLES[table]
    target = name.removesuffix("_file")
    if name not in known and target in known and target in READABLE_FROM_FILE:
        return _from_file(given, (table, target))
    if name not in known:
        keys = [*known, *(f"{key}_file" for key in known if key in READABLE_FROM_FILE)]
        if isinstance(given.value, dict):
            keys = providers  # a sub-table of one level is what it must have been meant to be
        raise SettingsError(
            f"{given.origin}: {given.name} is unknown: {suggestion(name, keys)}{_hint(table, name, keys)}"
        )
    return Given(given.path, _typed(given, known[name]), given.origin)


def _hint(table: str, name: str, keys: list[str]) -> str:
    return "" if name in keys else f"; what only one provider knows belongs under [{table}.<provider>]"


def _of_provider(given: Given, table: str, provider: str, name: str, providers: list[str]) -> Given:
    if provider not in providers:
        raise SettingsError(
            f"{given.origin}: [{table}.{provider}] belongs to no provider: {suggestion(provider, providers)}"
        )
    target = name.removesuffix("_file")
    if target != name and target in READABLE_FROM_FILE:
        return _from_file(given, (table, provider, target))
    is_text = isinstance(given.value, str) and given.origin.source != "file"
    return Given(given.path, guessed(name, given.value) if is_text else given.value, given.origin)


def _from_file(given: Given, path: tuple[str, ...]) -> Given:
    if not isinstance(given.value, str) or not given.value:
        raise SettingsError(f"{given.origin}: {given.name} must be the path of a file")
    try:
        with Path(given.value).open(encoding="utf-8") as file:
            text = file.read(_LARGEST_SECRET + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise SettingsError(f"{given.origin}: {given.name}={given.value!r} cannot be read: {reason}") from None
    secret = text.strip("\r\n")  # an editor ends a file with a line break
    if not secret or "\n" in secret or len(text) > _LARGEST_SECRET:
        raise SettingsError(f"{given.origin}: {given.name}={given.value!r} must hold one line")
    return Given(path, secret, Origin(given.origin.source, f"{given.origin.place} (file {given.value})"))


def _typed(given: Given, key: Key) -> Any:
    value = given.value
    if isinstance(value, str) and given.origin.source != "file" and key.type is not str:
        value = _parsed(value, key)
    if type(value) is not key.type:
        wanted = {str: "a text", int: "a whole number", bool: "true or false"}[key.type]
        raise SettingsError(f"{given.origin}: {given.name}={masked(given.path[-1], given.value)!r} must be {wanted}")
    if key.minimum is not None and isinstance(value, int) and value < key.minimum:
        raise SettingsError(f"{given.origin}: {given.name}={value} must be {key.minimum} or more")
    if isinstance(value, str) and not value.strip():
        raise SettingsError(f"{given.origin}: {given.name} must not be empty")
    return value


def _parsed(text: str, key: Key) -> Any:
    if key.type is bool:
        return _FLAGS.get(text.strip().lower(), text)
    try:
        return int(text.strip().replace("_", ""))
    except ValueError:
        return text
