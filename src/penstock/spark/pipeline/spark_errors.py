"""What Spark says at length, in one line."""

from __future__ import annotations

import re

_OURS = re.compile(r"^(?:penstock\.[\w.]+\.)?(\w+(?:Error|Exception|Lost|Missing|Failed|Denied|Differs|Fenced)): (.+)$")
_MOST = 600


def one_line(error: object) -> str:
    """Return what an error is about: the last line of a Python traceback that it carries, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [match for match in map(_OURS.match, lines[1:]) if match]
    text = f"{found[-1][1]}: {found[-1][2]}" if found and "Traceback" in str(error) else (lines or [repr(error)])[0]
    return text if len(text) <= _MOST else text[:_MOST] + "..."
