"""Payloads as they can be shown: decoded where that is safe, never executed, and cut where they are long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock import envelope
from penstock.errors import ConfigurationError, DecodeError, NotAuthentic
from penstock.ops.model import FieldValue, Payload
from penstock.protection import Protection, is_protected
from penstock.serializers import JsonSerializer, MsgpackSerializer

_LARGEST = 16 << 20
_JSON, _MSGPACK = JsonSerializer(max_bytes=_LARGEST), MsgpackSerializer(max_bytes=_LARGEST)
_PICKLE_TYPES = ("pickle", "x-python-serialize")
_PICKLED = b"\x80"


Row = Sequence[Any]  # an entry: its id, then name, first bytes and size of each field in turn


def fields_of(row: Row) -> tuple[FieldValue, ...]:
    """Return the fields of a row."""
    found = []
    for at in range(1, len(row), 3):
        name, value, size = row[at : at + 3]
        if isinstance(name, bytes) and isinstance(value, bytes):
            found.append(FieldValue(envelope.field_name(name), value, int(size)))
    return tuple(found)


def shown(fields: Mapping[str, FieldValue], stream: str, protection: Protection | None) -> Payload:
    """Return the payload of an entry of the stream with that key."""
    data = fields.get(envelope.DATA)
    if data is None:
        return Payload("none", note="the entry has no field 'data'")
    raw = data.value
    if is_protected(raw):
        if protection is None:
            return Payload(
                "protected", note="signed or encrypted: give the client a Protection with the keys to read it"
            )
        if data.is_cut:
            return Payload("protected", note=f"too large to verify or decrypt: {data.size} bytes")
        message_id = fields.get(envelope.MESSAGE_ID) or fields.get("task_id")
        try:
            raw = protection.open(raw, stream, envelope.text(message_id.value) if message_id else "")
        except NotAuthentic as error:
            return Payload("protected", note=str(error))
    said = envelope.text(fields[envelope.CONTENT_TYPE].value, 100) if envelope.CONTENT_TYPE in fields else ""
    if any(word in said for word in _PICKLE_TYPES) or (raw[:1] == _PICKLED and raw[-1:] == b"."):
        return Payload("pickle", note="pickle is not decoded here, because decoding can run code")
    return _cut(raw, data.size) if data.is_cut else decoded(raw)


def decoded(raw: bytes) -> Payload:
    """Return whole payload bytes as what they look like: JSON, text or MessagePack."""
    try:
        return Payload("json", _JSON.decode(raw))
    except DecodeError:
        pass
    if (text := _text(raw)) is not None:
        return Payload("text", text)
    try:
        return Payload("msgpack", _MSGPACK.decode(raw))
    except DecodeError:
        return Payload("binary", note=f"{len(raw)} bytes that are neither JSON, text nor MessagePack")


def encoded(form: str, value: Any) -> bytes:
    """Return a value as a payload of that form; raise ConfigurationError for a form that cannot be written here."""
    if isinstance(value, bytes):
        return value
    if form == "msgpack":
        return _MSGPACK.encode(value)
    if form not in {"json", "text", "none"}:
        raise ConfigurationError(
            f"a payload of form {form!r} can only be replaced by bytes, which its consumers must be able to read; to "
            "replace a protected payload by a value, give the client a Protection with the keys"
        )
    return value.encode() if isinstance(value, str) and form != "json" else _JSON.encode(value)


def _cut(raw: bytes, size: int) -> Payload:
    note = f"{size} bytes; only the first {len(raw)} are shown"
    begin = raw.decode(errors="ignore")
    is_text = len(begin.encode()) >= len(raw) - 3  # a character at the end may be cut in two
    return Payload("text" if is_text else "binary", begin if is_text else None, note)


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
