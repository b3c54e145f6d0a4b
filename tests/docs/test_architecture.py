"""The map of the code names files that exist, and every folder."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def test_the_map_names_what_exists() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|\.lua|/))`", PAGE)
    assert len(named) > 30
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_the_map_has_every_folder() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in PAGE} == set()
