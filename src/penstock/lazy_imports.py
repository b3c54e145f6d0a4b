"""Importing when first used: the names of a package, and the packages of extras."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from penstock.errors import ConfigurationError


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names are imported when they are first used.

    `homes` lists the names by the module that each comes from. Modules of the package are found as well, as if
    everything had been imported from the beginning.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name in home_of:
            value: object = getattr(import_module(home_of[name]), name)
            setattr(sys.modules[package], name, value)  # the next time Python finds it by itself
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, sorted(home_of)


def require(module: str, extra: str, who: str) -> ModuleType:
    """Return the module, or raise ConfigurationError that names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{who} needs {module.partition('.')[0]}, which cannot be imported ({error}): pip install "
            f"'penstock[{extra}]'"
        ) from error
