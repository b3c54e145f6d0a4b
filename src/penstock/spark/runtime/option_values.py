"""Options of a data source: Spark hands them over as texts with names in any case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from penstock.errors import ConfigurationError
from penstock.times import seconds_of

_Choice = TypeVar("_Choice", bound=str)


def duration_s(key: str, value: str) -> float:
    """Return a duration in seconds; raise ConfigurationError if it is invalid."""
    seconds = seconds_of(value)
    if seconds is None:
        raise ConfigurationError(f"{key}={value!r} must be a duration such as 500ms, 30s, 1h30m or 10 minutes")
    return seconds


class Options:
    """Reads options by name or alias; remembers which were known, so that a misspelt one can be refused."""

    def __init__(self, given: Mapping[str, str], form: str = "redis_streams") -> None:
        self._form = form
        self._given = {name.lower(): value for name, value in given.items()}
        self._names: dict[str, str] = {}  # lower case -> as it is documented

    def text(self, name: str, *aliases: str) -> str | None:
        """Return an option as it was given, under its name or an alias, or None; raise if two of them differ."""
        found: dict[str, str] = {}
        for spelling in (name, *aliases):
            self._names[spelling.lower()] = spelling
            value = self._given.get(spelling.lower())
            if value is not None:
                found[spelling] = value
        if len(found) > 1 and len(set(found.values())) > 1:
            raise ConfigurationError(
                f"the options {' and '.join(found)} mean the same but differ: set only one of them"
            )
        return next(iter(found.values()), None)

    def whole(self, name: str, *aliases: str, least: int = 1) -> int | None:
        """Return an option that is a whole number."""
        value = self.text(name, *aliases)
        if value is None:
            return None
        try:
            number = int(value.replace("_", ""))
        except ValueError:
            raise ConfigurationError(f"option {name}={value!r} must be a whole number") from None
        if number < least:
            raise ConfigurationError(f"option {name}={value} must be at least {least}")
        return number

    def flag(self, name: str, *aliases: str, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self.text(name, *aliases)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise ConfigurationError(f"option {name}={value!r} must be true or false")
        return value.strip().lower() == "true"

    def choice(self, name: str, choices: Sequence[_Choice], default: _Choice, *aliases: str) -> _Choice:
        """Return an option that is one of some words, in any case."""
        value = self.text(name, *aliases)
        if value is None:
            return default
        for choice in choices:
            if value.strip().lower() == choice.lower():
                return choice
        raise ConfigurationError(f"option {name}={value!r} must be one of {', '.join(choices)}")

    def duration(self, name: str, default: timedelta) -> timedelta:
        """Return an option that is a length of time, such as 15m, 30s, 500ms or `10 minutes`."""
        value = self.text(name)
        if value is None:
            return default
        return timedelta(seconds=duration_s(f"option {name}", value))

    def starting_with(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with the prefix, without it."""
        found = {name: value for name, value in self._given.items() if name.startswith(prefix)}
        self._names.update({name: name for name in found})
        return {name.removeprefix(prefix): value for name, value in found.items()}

    def refuse_unknown(self, ignored: Iterable[str] = ()) -> None:
        """Raise ConfigurationError for the first unknown option."""
        allowed = self._names.keys() | {name.lower() for name in ignored}
        for name in self._given:
            if name not in allowed:
                near = difflib.get_close_matches(name, self._names, n=1)
                hint = (
                    f"did you mean {self._names[near[0]]}?" if near else (f"available: {', '.join(self._documented())}")
                )
                raise ConfigurationError(f"unknown option {name!r} of format {self._form}; {hint}")

    def _documented(self) -> list[str]:
        return sorted(self._names.values(), key=str.lower)
