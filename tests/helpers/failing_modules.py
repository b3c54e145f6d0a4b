"""Modules of users that cannot be imported, and an error that cannot be shown."""

from __future__ import annotations

from pathlib import Path

import pytest


class Mute(ValueError):
    """Cannot be shown, and wants to end the process of whoever tries."""

    def __str__(self) -> str:
        raise SystemExit(4)


TOLD = "Mute; formatting it raised SystemExit"
"""What is told of it."""
FAILING = {
    f"from {__name__} import Mute\nraise Mute": f"Mute: {TOLD}",
    "import sys\nsys.exit('not here')": "SystemExit: not here",
}
"""The text of a module, and what is told of its failure."""


def write_module(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes a module where it can be imported; returns its name."""
    name = f"module_{abs(hash(text))}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return name
