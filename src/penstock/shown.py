"""Makes untrusted text safe to display: messages and names may contain anything that someone wrote to Redis."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from typing import Any

import msgspec

from penstock import ids

_DEEPEST = 100
_MAX_BITS = 10_000  # of a number in JSON; Python refuses to write more than 4,300 digits


def shown(value: object) -> str:
    """Return untrusted text in one line, with control characters, also those for text direction, as escapes."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else _escaped(text, "", _escape)


def command_line(verb: str, *names: str) -> str:
    """Return a command to paste into a shell, in backquotes; names are quoted, and none is read as an option."""
    is_value = verb.rsplit(maxsplit=1)[-1].startswith("--")  # of an option, which takes any value
    ends_options = not is_value and any(name.startswith("-") for name in names)
    return f"`penstock {verb} {'-- ' if ends_options else ''}{shlex.join(names)}`"


def shown_lines(value: object, indent: int = 0) -> str:
    """Return untrusted text like shown(), but keep its lines; all but the first are indented."""
    lines = [shown(line.replace("\t", "    ")) for line in str(value).split("\n")]
    return ("\n" + " " * indent).join(lines)


def to_json(value: object, indent: int | None = None) -> str:
    """Write a value as JSON; what JSON cannot represent, such as bytes, is written as text."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text if text.isprintable() else _escaped(text, "\n", _escape_in_json)


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value in types that JSON has, so that any message can be shown, whatever it contains."""
    if isinstance(value, msgspec.Struct):
        value = _with_times(msgspec.structs.asdict(value))
    elif is_dataclass(value) and not isinstance(value, type):
        value = _with_times({each.name: getattr(value, each.name) for each in fields(value)})
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return _scalar(value)
    if depth > _DEEPEST:
        return "... (nested too deeply to display)"
    if not isinstance(value, Mapping):
        return [plain(item, depth + 1) for item in value]
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = _scalar(key)
        text = name if isinstance(name, str) else str(name)
        while text in found:  # 1 and "1" are two keys
            text = f"{text} ({type(key).__name__})"
        found[text] = plain(item, depth + 1)
    return found


def _with_times(named: dict[str, Any]) -> dict[str, Any]:
    # Output has one form for times: `dead_at_ms`, a number, becomes `dead_at`, in ISO 8601.
    return {
        name.removesuffix("_ms") if (is_time := f"_{name}".endswith("_at_ms")) else name: (
            ids.moment(item) if is_time and item is not None else item
        )
        for name, item in named.items()
    }


def _scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        return _scalar(value.value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return hex(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if isinstance(value, date) else str(value)


def _escaped(text: str, kept: str, escape: Callable[[str], str]) -> str:
    return "".join(char if char.isprintable() or char in kept else escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _escape_in_json(char: str) -> str:
    return json.dumps(char)[1:-1]
