"""How values look on a page: ages, payloads, small lines and links; see penstock.units for numbers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from penstock.shown import shown, shown_lines, to_json
from penstock.units import NOTHING, as_datetime, count, duration, moment, rate, size

_MAX_SHOWN = 200_000  # characters of one value on a page


def environment() -> Environment:
    """Return the templates, with everything below as filters; what they do not know is an error."""
    found = Environment(
        loader=PackageLoader("penstock.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        ago=ago, count=count, duration=duration, editable=editable, lines=lines, moment=moment, payload=payload,
        preview=preview, quoted=shlex.quote, rate=rate, raw=raw, size=size, sparkline=sparkline, visible=shown,
    )  # fmt: skip
    return found


def ago(at: datetime | float | None) -> Markup | str:
    """Return how long ago something was, or when it will be; the exact time is the title."""
    known = as_datetime(at)
    if known is None:
        return NOTHING
    passed = time.time() - known.timestamp()
    text = f"in {duration(-passed)}" if passed < -1 else f"{duration(max(passed, 0))} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(known.isoformat(), moment(known), text)


def lines(text: object) -> str:
    """Return a text of several lines, with control characters as escapes."""
    return shown_lines(_cut(str(text)))


def payload(value: object) -> str:
    """Return a decoded payload as it is shown whole: text as it is, everything else as JSON."""
    return lines(value) if isinstance(value, str) else _cut(to_json(value, indent=2))


def editable(value: object) -> str:
    """Return a decoded payload as it can be edited and read again: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else to_json(value, indent=2)


def preview(value: object, most: int = 200) -> str:
    """Return the beginning of a decoded payload in one line."""
    text = shown(value[: most + 1]) if isinstance(value, str) else to_json(value)
    return text if len(text) <= most else f"{text[:most]}…"


def raw(value: bytes) -> str:
    """Return bytes as text, with whatever is no text as escapes."""
    return lines(value.decode(errors="backslashreplace"))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else (f"{text[:_MAX_SHOWN]}\n… {len(text) - _MAX_SHOWN:,} more characters")


def sparkline(values: Sequence[float | None], width: int = 88, height: int = 20) -> Markup:
    """Return a small line without axes, hidden from screen readers because the table has the number, too."""
    known = [value or 0.0 for value in values]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1.0
    step = width / (len(known) - 1)
    points = " ".join(f"{i * step:.1f},{height - 1 - value / top * (height - 2):.1f}" for i, value in enumerate(known))
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true"><polyline points="{}" '
        'fill="none" stroke="currentColor" stroke-width="1.25" vector-effect="non-scaling-stroke"/></svg>'
    ).format(width, height, points)


def link(base: str, path: str, params: Mapping[str, Any]) -> str:
    """Return the address of a page; parameters that are empty are left out."""
    given = {name: value for name, value in params.items() if value not in (None, "", (), [])}
    return f"{base}{path}?{urlencode(given, doseq=True, errors='replace')}" if given else f"{base}{path}"
