"""Where a setting came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Source = Literal["default", "file", "environment", "flag"]


@dataclass(frozen=True)
class Origin:
    """The place in which a value was written, as precisely as it is known."""

    source: Source
    place: str = ""

    def __str__(self) -> str:
        return f"environment variable {self.place}" if self.source == "environment" else self.place or self.source


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Given:
    """A value that somebody gave for `table.key` or `table.provider.key`, and where."""

    path: tuple[str, ...]
    value: Any
    origin: Origin

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.path)


def in_file(path: Path, line: int | None) -> Origin:
    """Return the origin of a value in a file."""
    return Origin("file", str(path) if line is None else f"{path}:{line}")
