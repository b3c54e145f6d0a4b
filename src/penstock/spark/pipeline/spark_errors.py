"""What Spark says at length, in one line."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last)"
_PLAN = "=== Streaming Query ==="  # behind it are offsets and the plan of the query
# The last line of a traceback: it is not indented, and names a class.
_RAISED = re.compile(r"(?:[a-z_]\w*\.)*([A-Z]\w*[a-z]\w*): (.+)")
_MOST = 600


def one_line(error: object) -> str:
    """Return what an error is about: the end of the Python traceback that it carries, or else its first line."""
    told = str(error).partition(_PLAN)[0]
    lines = [line.rstrip() for line in told.splitlines() if line.strip()] or [repr(error)]
    begun = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
    text = lines[0].strip()
    if begun is not None:
        found = [match for match in map(_RAISED.match, lines[begun:]) if match]
        if found:
            text = f"{found[-1][1]}: {found[-1][2]}"
    return text if len(text) <= _MOST else text[:_MOST] + "..."
