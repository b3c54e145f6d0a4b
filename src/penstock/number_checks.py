"""Checks of the numbers that users pass: each raises an error that names the parameter, and what to pass instead."""

from __future__ import annotations

import math

from penstock.errors import ConfigurationError, ConfigurationTypeError

_MOST = 1 << 53  # greater whole numbers are not exact in Lua


def check_number(name: str, value: object, *, is_whole: bool = True, may_be_zero: bool = False) -> None:
    """Raise ConfigurationError unless the value is a finite number, and positive or, where it may be, zero."""
    if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
        kind = f"a {'whole ' if is_whole else ''}number"
        raise ConfigurationTypeError(f"{name}={value!r} must be {kind}, not {type(value).__name__}")
    if not (value >= 0 if may_be_zero else value > 0):
        raise ConfigurationError(f"{name}={value} must be {'0 or more' if may_be_zero else 'positive'}")
    if value == math.inf:
        raise ConfigurationError(f"{name}={value} must be finite")
    if value > _MOST:
        raise ConfigurationError(f"{name}={value} must be at most {_MOST}")


def check_seconds(name: str, value: object, *, may_be_zero: bool = False) -> float:
    """Return the value if it is a positive number of seconds, or, where that makes sense, none at all."""
    seconds = number_of_seconds(name, value)
    if not (0 < seconds < math.inf or (may_be_zero and seconds == 0)):
        kind = "finite number of seconds, 0 or more" if may_be_zero else "positive, finite number of seconds"
        raise ConfigurationError(f"{name}={value!r} must be a {kind}")
    return seconds


def number_of_seconds(name: str, value: object) -> float:
    """Return the value if it is a number, which a timedelta is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationTypeError(f"{name}={value!r} must be a number of seconds, not {type(value).__name__}")
    return value
