"""The Lua scripts: loaded from the files beside this one, each a state transition of its own."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (\w+)\.lua$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script, known to the server by the hash of its source."""

    name: str
    source: str
    sha: str


def part(name: str) -> str:
    """Return the text of a script, or of a part that others include, with all that it includes."""
    text = (files(__package__) / "lua" / f"{name}.lua").read_text()
    return _INCLUDE.sub(lambda match: part(match.group(1)), text)


@cache
def script(name: str) -> Script:
    """Load a script and what it includes."""
    source = part(name)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
