"""Packages that only some back-ends need."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from penstock.errors import ConfigurationError


def require(module: str, extra: str, who: str) -> ModuleType:
    """Return the module, or raise ConfigurationError that names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{who} needs {module.partition('.')[0]}, which is not usable here ({error}): "
            f"pip install 'penstock[{extra}]'"
        ) from error
