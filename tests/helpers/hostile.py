"""Entries that only somebody writes who means harm, or a program that has lost its way."""

from __future__ import annotations

MANY_FIELDS = (4_000, 10_000)  # Lua hands at most 8,000 arguments to a command
NO_NUMBERS = {
    "digits without end": "9" * 5_000,
    "a superscript": "²",
    "beyond 63 bits": "9" * 20,
    "a sign": "-1",
    "a fraction": "1.5",
    "nothing": "",
    "no text": b"\xff",
}


def wide(count: int, **more: str | bytes) -> dict[str, str | bytes]:
    """Returns so many fields, and behind them those that matter."""
    return {**{f"field-{n}": str(n) for n in range(count)}, **more}
