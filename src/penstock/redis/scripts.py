"""The Lua scripts: loaded from the folders beside this file, each a state transition of its own.

A script is named by its path: `tasks/enqueue`. It includes parts by a line `-- include: shared/ids.lua`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (\w+/\w+)\.lua\n", re.MULTILINE)
_FOLDER = files(__package__) / "lua"
_MARK_OF_A_PART = "-- Included by "


@dataclass(frozen=True, slots=True)
class Script:
    """One script, known to the server by the hash of its source."""

    name: str
    source: str
    sha: str


def part(name: str) -> str:
    """Return the text of a script, or of a part that others include, with all that it includes, each once."""
    included: set[str] = set()

    def text(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        return _INCLUDE.sub(lambda match: text(match[1]), (_FOLDER / f"{name}.lua").read_text())

    return text(name)


@cache
def script(name: str) -> Script:
    """Load a script and what it includes."""
    source = part(name)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def names() -> tuple[str, ...]:
    """Return the names of all scripts, without the parts that they include."""
    found = (f"{folder.name}/{file.name}" for folder in _FOLDER.iterdir() for file in folder.iterdir())
    scripts = (path.removesuffix(".lua") for path in found)
    return tuple(sorted(name for name in scripts if not part(name).startswith(_MARK_OF_A_PART)))
