"""Checks of the types of what users pass: each raises an error that names the parameter, and what to pass instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping

from penstock.encode_errors import type_name
from penstock.errors import ConfigurationTypeError


def check_type(name: str, value: object, wanted: type, example: str) -> None:
    """Raise ConfigurationError unless the value is an instance of the class."""
    if not isinstance(value, wanted):
        raise ConfigurationTypeError(f"{name} must be a {wanted.__name__}, not {type_name(value)}: {example}")


def check_list(name: str, value: object, hint: str) -> None:
    """Raise ConfigurationError unless the value is a collection: iterating a str gives characters, a dict its keys."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationTypeError(f"{name} must be a list, not {type_name(value)}: {hint}")


def is_async(function: Callable[..., object]) -> bool:
    """Return whether calling the function returns a coroutine."""
    # An object whose type has an async __call__ counts as well.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_arguments(name: str, function: Callable[..., object], count: int) -> None:
    """Raise ConfigurationError unless the function can be called with that many positional arguments."""
    try:
        # A decorator made with functools.wraps may pass arguments of its own to the function that it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return  # some built-in functions have none
    try:
        signature.bind(*range(count))
    except TypeError as error:
        arguments = {0: "no arguments", 1: "1 argument"}.get(count, f"{count} arguments")
        raise ConfigurationTypeError(
            f"{name} is called with {arguments}, which its signature does not accept: {error}"
        ) from None
