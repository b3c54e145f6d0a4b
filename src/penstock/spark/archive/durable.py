"""Files that are there, whole, after a crash, or not at all."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.errors import ConfigurationError

Step = Callable[[str], None]  # told what was just done; tests crash there


def no_step(_: str) -> None:
    """Do nothing between two steps."""


def sync_directory(place: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(file: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(place: Path) -> None:
    """Make a directory and its parents, durably."""
    missing = []
    while not place.is_dir():
        missing.append(place)
        place = place.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def create(file: Path, content: bytes, step: Step = no_step) -> None:
    """Create a file with its whole content; raise FileExistsError if there is one of that name.

    A link is the one operation that both appears at once and refuses an existing name.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}.draft")
    try:
        with draft.open("xb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        step("drafted")
        os.link(draft, file)
        step("linked")
        sync_directory(file.parent)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def place(source: Path, target: Path) -> None:
    """Give a durable file its name; raise FileExistsError if there is one of that name."""
    make_directory(target.parent)
    os.link(source, target)
    sync_directory(target.parent)


def check_writable(place: Path, what: str = "archive") -> None:
    """Raise ConfigurationError unless files can be made in a directory, or in the nearest that exists above it."""
    existing = place
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigurationError(f"{what} {place}: {existing} is no directory")
    try:
        Path(tempfile.mkdtemp(prefix=".penstock-", dir=existing)).rmdir()  # rights alone do not tell it
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(
            f"{what} {place}: nothing can be written in {existing} ({reason}); check its owner and rights"
        ) from None
