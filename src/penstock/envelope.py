"""The fields of a stream entry: `data` contains the payload, others everything else.

redis-stream-queue 0.1.x writes entries with only `data`, and reads no other field.

Anyone who may write to the stream can choose these bytes. They are parsed only here: parsing takes time in proportion
to the bytes, and raises nothing but DecodeError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from penstock.errors import ConfigurationError, DecodeError
from penstock.keys import is_utf8

DATA = "data"
MESSAGE_ID = "message_id"
KEY = "key"
HEADERS = "headers"
CONTENT_TYPE = "content_type"
EXPIRES_AT = "expires_at"
REDRIVES = "redrives"
DEDUP_KEY = "dedup_key"  # under which the message was published, so that the key can be released

_encode_json = msgspec.json.encode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
NO_HEADERS: Mapping[str, str] = {}

MAX_NUMBER = (1 << 63) - 1
MAX_HEADERS = 1 << 20  # bytes
_MAX_SHOWN = 2_000  # characters of headers that are none
_MAX_DIGITS = len(str(MAX_NUMBER))
_MAX_NAMES, _LONGEST_NAME = 1_000, 64
_ESCAPE = "\\x"
_ESCAPED = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")

Fields = Sequence[bytes]  # field, value, field, value, ... as the server sends them


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers; raise ConfigurationError unless all names and values are text."""
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers must be a mapping of strings to strings, not a {type(headers).__name__}")
    for name, value in headers.items():
        if not _is_text(name) or not _is_text(value):
            raise ConfigurationError(
                f"headers must be strings that UTF-8 can encode: {name!r} has a {type(value).__name__}"
            )
    raw = _encode_json(headers)
    if len(raw) > MAX_HEADERS:
        raise ConfigurationError(
            f"headers have {len(raw)} bytes, more than the limit of {MAX_HEADERS}: move large values into the payload"
        )
    return raw


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_utf8(value)


def decode_headers(raw: bytes | None) -> Mapping[str, str]:
    """Decode headers; anything but an object of strings becomes one header `raw`, without an error."""
    if not raw:
        return NO_HEADERS
    try:
        if len(raw) <= MAX_HEADERS:
            return _decode_headers(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # text that is no UTF-8 is a ValueError
        pass
    return {"raw": text(raw, _MAX_SHOWN)}


def text(raw: bytes | None, most: int | None = None) -> str:
    """Return bytes as text of at most `most` characters; bytes that are not UTF-8 become replacement characters."""
    if not raw:
        return ""
    if most is None:
        return raw.decode(errors="replace")
    return raw[: 4 * most].decode(errors="replace")[:most]  # a character has at most four bytes


def number(raw: bytes | str | None) -> int | None:
    """Return a whole number of ASCII digits that fits 63 bits; None for everything else."""
    # int() takes time that grows with the square of the digits, and raises beyond 4,300; isdigit() of a str knows `²`.
    if raw is None or not 0 < len(raw) <= _MAX_DIGITS or not raw.isascii() or not raw.isdigit():
        return None
    value = int(raw)
    return value if value <= MAX_NUMBER else None


def is_expired(fields: Mapping[str, bytes], now_s: float) -> bool:
    """Return whether an entry has expired at a time in seconds since 1970. Raise DecodeError for what is no time."""
    raw = fields.get(EXPIRES_AT)
    if raw is None:
        return False
    found = number(raw)
    if found is None:
        raise DecodeError(f"the field {EXPIRES_AT!r} must be a whole number of ms since 1970, not {raw[:40]!r}")
    return now_s * 1000 >= found


def dedup_key(fields: Fields) -> str | None:
    """Return the key under which an entry was published, if it has one."""
    return text(as_mapping(fields).get(DEDUP_KEY)) or None


# --- names of fields ------------------------------------------------------------------------------


def field_name(raw: bytes) -> str:
    r"""Return the name of a field as text. Names that differ stay different; field_bytes() is the way back.

    A name that is UTF-8 without `\x` in it is itself. In any other a byte that is no UTF-8 is written as `\xff`, and
    a backslash twice.
    """
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    return name.replace("\\", "\\\\") if _ESCAPE in name else name


def field_bytes(name: str) -> bytes:
    """Return the bytes of the field that field_name() calls by this name."""
    if _ESCAPE not in name:
        return name.encode()
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", name.encode())


class _NameCache(dict[bytes, str]):
    """Remembers the names of fields: there are few, and every message has them."""

    def __missing__(self, raw: bytes) -> str:
        name = field_name(raw)
        if len(self) < _MAX_NAMES and len(raw) <= _LONGEST_NAME:  # any writer of the stream can choose them
            self[raw] = name
        return name


_name_of = _NameCache().__getitem__


def as_mapping(fields: Fields) -> dict[str, bytes]:
    """Return the fields of an entry by name; of fields with the same name, the last one counts."""
    return dict(zip(map(_name_of, fields[::2]), fields[1::2], strict=True))


def as_fields(by_name: Mapping[str, bytes]) -> list[bytes]:
    """Return fields by name as they are sent to the server: name, value, name, value, ..."""
    return [part for name, value in by_name.items() for part in (field_bytes(name), value)]
