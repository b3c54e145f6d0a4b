"""Why a payload is malformed, in short and stable words: what a `reason` column shows and users group by."""

from __future__ import annotations

import re
from typing import Final

import msgspec

NO_PAYLOAD: Final = "no payload"
FORM_NAMES: Final = {"json": "JSON", "msgpack": "MessagePack", "avro": "Avro"}

_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_NOT_OBJECT = re.compile(r"Expected `object`, got `(.*)`")
_PREFIX = re.compile(r"^(JSON|MessagePack data) is malformed: ")


def reason_of(error: Exception, form: str) -> str:
    """Return why decoding failed: `not JSON: ...`, `not an object: ...` or `field total: ...`."""
    if isinstance(error, msgspec.ValidationError):
        return _reason_of_value(str(error))
    if isinstance(error, RecursionError):
        return f"not {FORM_NAMES[form]}: nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not {FORM_NAMES[form]}: a text is not UTF-8"
    said = _PREFIX.sub("", str(error)) or type(error).__name__
    return f"not {FORM_NAMES[form]}: {said[:1].lower()}{said[1:]}"


def _reason_of_value(text: str) -> str:
    # msgspec ends its texts with the place, as in: Expected `int`, got `str` - at `$.items[0].qty`
    said, found, place = text.rpartition(" - at `$")
    if not found:
        said, place = text, "`"
    path = place[:-1].removeprefix(".")
    missing = _MISSING.fullmatch(said)
    if missing is not None:
        return f"field {path}.{missing[1]}: missing" if path else f"field {missing[1]}: missing"
    no_object = _NOT_OBJECT.fullmatch(said)
    if no_object is not None and not path:
        return f"not an object: got {no_object[1]}"
    plain = said.replace(" | null`", "`").replace("`", "") if said.startswith("Expected `") else said
    return f"field {path}: {plain[:1].lower()}{plain[1:]}"
