"""Times, lengths of time and amounts as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def shown(ms: int) -> str:
    """Return a time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # an id that somebody chose
        return f"{ms} ms"


def brief(ms: int) -> str:
    """Return a time for a table whose head names the zone."""
    return shown(ms).removesuffix(" UTC")


def length(ms: int | None) -> str:
    """Return a length of time in the unit that suits it."""
    if ms is None:
        return "–"  # noqa: RUF001  the sign for nothing known
    for unit, size in _UNITS:
        if abs(ms) >= size:
            return f"{ms / size:,.3g} {unit}" if abs(ms) < 1000 * size else f"{ms / size:,.0f} {unit}"
    return f"{ms:,} ms"


def size(count: int | None) -> str:
    """Return an amount of bytes."""
    if count is None:
        return "–"  # noqa: RUF001  likewise
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:,.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
