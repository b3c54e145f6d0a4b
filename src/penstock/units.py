"""Numbers, sizes, durations and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

NOTHING = "\N{EN DASH}"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def count(value: float | None) -> str:
    """Return a whole number with its thousands separated; a dash for none."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return how often a second."""
    return NOTHING if value is None else f"{value:,.0f}/s" if value >= 100 or value == 0 else f"{value:.1f}/s"


def size(value: int | None) -> str:
    """Return bytes in the unit that keeps the number short."""
    if value is None:
        return NOTHING
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two biggest units."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest, parts = int(seconds), []
    for step, unit in _STEPS:
        if rest >= step:
            parts.append(f"{rest // step:,} {unit}")
            rest %= step
        elif parts:
            break
    return " ".join(parts[:2])


def moment(at: datetime | float | None) -> str:
    """Return a time to the millisecond, in UTC."""
    known = as_datetime(at)
    return NOTHING if known is None else f"{known:%Y-%m-%d %H:%M:%S}.{known.microsecond // 1000:03d} UTC"


def as_datetime(at: datetime | float | None) -> datetime | None:
    """Return a time that is given in ms since 1970; None if it is not a time."""
    # A producer may choose any ids, which need not be times.
    if at is None or isinstance(at, datetime):
        return at
    try:
        return datetime.fromtimestamp(at / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return None
