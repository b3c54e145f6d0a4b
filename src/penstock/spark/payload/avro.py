"""Avro payloads: plain binary, or single-object encoding (C3 01, the fingerprint of the schema, the binary)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from penstock.errors import ConfigurationError

_HEADER = b"\xc3\x01"
_HEADER_SIZE = 10


def record_reader(writer_schema: str | None) -> Callable[[bytes], object]:
    """Return the function that reads one record with the writer's schema.

    Raises ConfigurationError when the schema is missing or none, or when fastavro is not installed.
    """
    if writer_schema is None:
        raise ConfigurationError("Avro payloads need the schema of their writer: Avro's bytes do not name their fields")
    fastavro = _fastavro()
    try:
        parsed = fastavro.parse_schema(json.loads(writer_schema))
        canonical = fastavro.schema.to_parsing_canonical_form(parsed)
    except Exception as error:
        raise ConfigurationError(f"the Avro schema cannot be read: {type(error).__name__}: {error}") from error
    fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))

    def read_plain(payload: bytes, start: int) -> object:
        source = io.BytesIO(payload)
        source.seek(start)
        record = fastavro.schemaless_reader(source, parsed, None)
        left = len(payload) - source.tell()
        if left:
            raise ValueError(f"{left} bytes follow the record")
        return record

    def read(payload: bytes) -> object:
        if payload[:2] != _HEADER:
            return read_plain(payload, 0)
        found = payload[2:_HEADER_SIZE]
        if found == fingerprint:
            return read_plain(payload, _HEADER_SIZE)
        # A plain record may begin with the same two bytes by chance; it then ends where the payload ends.
        try:
            return read_plain(payload, 0)
        except Exception:
            raise ValueError(f"written with another schema (fingerprint {found.hex()})") from None

    return read


def _fastavro() -> Any:
    try:
        import fastavro
        import fastavro.schema
    except ImportError:
        raise ConfigurationError("Avro payloads need fastavro: pip install 'penstock[avro]'") from None
    return fastavro
