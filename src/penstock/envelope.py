"""The fields of a stream entry: the payload is in `data`, everything else stands beside it.

An entry with nothing but `data` is what redis-stream-queue 0.1.x writes, and it reads no other field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.errors import ConfigurationError
from penstock.keys import is_utf8

DATA = "data"
MESSAGE_ID = "message_id"
KEY = "key"
HEADERS = "headers"
CONTENT_TYPE = "content_type"
EXPIRES_AT = "expires_at"
REDRIVES = "redrives"
DEDUP_KEY = "dedup_key"  # under which the message was published, so that the key can be freed

_encode_json = msgspec.json.encode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
NO_HEADERS: Mapping[str, str] = {}

Fields = Sequence[bytes]  # field, value, field, value, ... as the server sends them


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers; raise ConfigurationError unless all names and values are text."""
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers must be a mapping of texts, not a {type(headers).__name__}")
    for name, value in headers.items():
        if not _is_text(name) or not _is_text(value):
            raise ConfigurationError(f"headers must be text in UTF-8: {name!r} has a {type(value).__name__}")
    return _encode_json(headers)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_utf8(value)


def decode_headers(raw: bytes | None) -> Mapping[str, str]:
    """Decode headers; what is not an object of texts is shown as one header `raw`, never an error."""
    if not raw:
        return NO_HEADERS
    try:
        return _decode_headers(raw)
    except msgspec.DecodeError:
        return {"raw": raw.decode(errors="replace")}


def as_mapping(fields: Fields) -> dict[str, bytes]:
    """Return the fields of an entry by name."""
    names, values = fields[::2], fields[1::2]
    try:
        return dict(zip(map(bytes.decode, names), values, strict=True))
    except UnicodeDecodeError:
        return dict(zip([name.decode(errors="replace") for name in names], values, strict=True))
