"""Which dead letters have one cause: a fingerprint that leaves out what differs from message to message."""

from __future__ import annotations

import hashlib
import re

_FRAME = re.compile(r'^  File "(?:[^"]*[/\\])?([^"/\\]+)", line \d+, in (.+)$', re.MULTILINE)
# Ids, numbers and quoted values: they tell one message from another, not one cause.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = re.compile(r"\b(?:0x)?[0-9a-fA-F-]*\d[0-9a-fA-F-]*\b")
_LONGEST = 300


def fingerprint(reason: str, error: str, error_text: str, traceback: str) -> str:
    """Return a short text that is the same for failures of one cause: of one error raised in one function."""
    frames = _FRAME.findall(traceback)
    place = "/".join(frames[-1]) if frames else ""
    pattern = _NUMBERS.sub("#", _QUOTED.sub("'#'", error_text[:_LONGEST]))
    told = repr((reason, error, place, pattern))
    return hashlib.sha256(told.encode(errors="replace")).hexdigest()[:12]
