"""What `module:name` on the command line means."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, summary_of
from penstock.tasks.handlers import Handlers


def is_target(text: str) -> bool:
    """Return whether a text has the form module:name."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def load(target: str, what: str) -> Any:
    """Import the module and return its object; the current folder is looked in first."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ConfigurationError(f"{what} {target!r} must be written as module:name, for example myapp.tasks:handlers")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"no module named {module_name!r} in {here} or among the installed packages"
            ) from error
        raise ConfigurationError(f"{what} {target!r} cannot be imported: {_place(error)}{summary_of(error)}") from error
    found = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(f"module {module_name!r} has no {name!r}") from None
    return found


def _place(error: BaseException) -> str:
    # Where their code failed: the last line that is not of the machinery of imports.
    if isinstance(error, SyntaxError):
        return ""  # its text says it
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if len(frames) > 2 else ""


def load_handlers(target: str) -> Handlers:
    """Import a collection of handlers."""
    found = load(target, "the handlers")
    if not isinstance(found, Handlers):
        raise ConfigurationError(f"{target!r} must be a penstock.tasks.Handlers, not a {type(found).__name__}")
    return found
