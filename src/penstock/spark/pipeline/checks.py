"""What the values of a declaration have in common: lengths of time, choices, paths to functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import ConfigurationError, summary_of
from penstock.times import seconds_of

_MOST_TIMEOUT_S = 86_400.0


def check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    """Raise ConfigurationError unless the value is one of the choices."""
    if value not in choices:
        raise ConfigurationError(f"{key} = {value!r} must be one of {', '.join(choices)}")


def check_text(key: str, value: object) -> None:
    """Raise ConfigurationError unless the value is a text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{key} = {value!r} must be a text that is not empty")


def check_positive(key: str, value: object) -> None:
    """Raise ConfigurationError unless the value is a whole number above zero, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigurationError(f"{key} = {value!r} must be a whole number, 1 or more")


def take_texts(owner: object, *keys: str) -> None:
    """Make tuples of what a frozen value was given as a text or a list; raise ConfigurationError for anything else."""
    for key in keys:
        value = getattr(owner, key)
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ConfigurationError(f"{key} = {value!r} must be a text or a list of texts")
        object.__setattr__(owner, key, tuple(texts))


def take_values(owner: object, key: str, kinds: tuple[type, ...]) -> None:
    """Make a tuple of what a frozen value was given as one value or as a list; raise ConfigurationError for others."""
    given = getattr(owner, key)
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in values:
        if not isinstance(value, kinds):
            known = ", ".join(kind.__name__ for kind in kinds)
            raise ConfigurationError(f"{key}: {value!r} is none of {known}")
    object.__setattr__(owner, key, values)


def duration_s(key: str, value: str) -> float:
    """Return a length of time in seconds; raise ConfigurationError for what is none."""
    seconds = seconds_of(value)
    if seconds is None:
        raise ConfigurationError(f"{key} = {value!r} must be a duration such as 500ms, 30s, 1h30m or 10 minutes")
    return seconds


def check_timeout(key: str, value: str) -> float:
    """Return how long a handler may take, in seconds; raise ConfigurationError for what is no such time."""
    seconds = duration_s(key, value)
    if not 0 < seconds <= _MOST_TIMEOUT_S:
        raise ConfigurationError(f"{key} = {value!r} must be more than nothing, and at most a day")
    return seconds


def check_function_path(key: str, path: str) -> None:
    """Raise ConfigurationError unless the path is written as module:function."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"{key} = {path!r} must be written as 'package.module:function'")


def imported(key: str, path: str) -> Callable[..., Any]:
    """Import the function that a path names; raise ConfigurationError when there is none."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise ConfigurationError(f"{key} = {path!r} cannot be imported here: {summary_of(error)}") from None
    if not callable(found):
        raise ConfigurationError(f"{key} = {path!r} is no function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]
