"""A Python that lacks Penstock, or all packages, as executors may."""

from __future__ import annotations

import sys
from pathlib import Path

import redis


def bare_python(place: Path, *, has_packages: bool = True) -> Path:
    """Makes the program; without site initialisation the editable installation of Penstock is not seen."""
    program = place / "python"
    packages = Path(redis.__file__).parents[1]
    extra = f'PYTHONPATH="$PYTHONPATH:{packages}" ' if has_packages else ""
    program.write_text(f'#!/bin/sh\n{extra}exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program
