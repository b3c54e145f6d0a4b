"""The Lua scripts: loaded from the files beside this one, each a state transition of its own."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script, known to the server by the hash of its source."""

    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """Load a script and what it includes."""
    folder = files(__package__) / "lua"

    def read(file_name: str) -> str:
        return _INCLUDE.sub(lambda match: read(match.group(1)), (folder / file_name).read_text())

    source = read(f"{name}.lua")
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
