"""Durations and moments as people write them: `1h30m`, `10 minutes`, `2026-11-15T12:00Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from penstock.errors import ConfigurationError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_WORDS = {
    "millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w", "sec": "s", "min": "m",
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d+)?) *([a-z]+) *", re.ASCII)
_LONGEST_S = 1_000 * 365 * 86_400.0
LAST_MS = (1 << 63) - 1
_LONGEST_TEXT = 100


def seconds_of(text: str) -> float | None:
    """Return a duration such as 1h30m, 500ms or `10 minutes` in seconds; None if the text is none.

    Every number has a unit: 90 could be seconds, as in one library, or milliseconds, as in another.
    """
    text = text.strip().lower()
    total, at = 0.0, 0
    for part in _PART.finditer(text[:_LONGEST_TEXT]):
        unit = _WORDS.get(part[2].removesuffix("s"), part[2])
        if part.start() != at or unit not in _UNITS_S:
            return None
        total, at = total + float(part[1]) * _UNITS_S[unit], part.end()
    return total if text and at == len(text) and total <= _LONGEST_S else None


def duration_s(text: str) -> float:
    """Return a duration in seconds; raise ConfigurationError for a text that is none."""
    found = seconds_of(text)
    if found is None:
        raise ConfigurationError(f"{_cut(text)} is not a duration: write 500ms, 30s, 1h30m or '10 minutes'")
    return found


def milliseconds_of(text: str) -> int | None:
    """Return a moment in ms since 1970, given so or in ISO 8601, in UTC unless it names a zone; None if it is none."""
    text = text.strip()
    try:
        if text.isascii() and text.isdigit():
            found = int(text[:_LONGEST_TEXT])
        else:
            moment = datetime.fromisoformat(text)
            found = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found <= LAST_MS else None


def moment_ms(text: str, now_ms: int) -> int:
    """Return a moment in ms since 1970: as milliseconds_of() reads it, or a duration before now, such as 2h."""
    found = milliseconds_of(text)
    if found is None and (ago_s := seconds_of(text)) is not None:
        found = max(0, now_ms - round(ago_s * 1000))
    if found is None:
        raise ConfigurationError(
            f"{_cut(text)} is not a time: write 2026-11-15T12:00Z, which is UTC unless it names a zone, milliseconds "
            "since 1970, or how long ago, such as 2h"
        )
    return found


def _cut(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}...")
