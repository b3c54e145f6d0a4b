"""Avro payloads: plain binary, or single-object encoding (C3 01, the fingerprint of the schema, the binary).

And the columns of the records that an Avro schema describes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.payload.ddl import TIMESTAMP, TIMESTAMP_NTZ, check_names, list_of, map_of, merged

_HEADER = b"\xc3\x01"
_HEADER_SIZE = 10
_SIMPLE = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(), "enum": pa.string(),
}  # fmt: skip
_LOGICAL = {
    "date": pa.date32(), "uuid": pa.string(), "time-millis": pa.string(), "time-micros": pa.string(),
    "timestamp-millis": TIMESTAMP, "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": TIMESTAMP_NTZ, "local-timestamp-micros": TIMESTAMP_NTZ,
}  # fmt: skip


def record_reader(writer_schema: str | None) -> Callable[[bytes], object]:
    """Return the function that reads one record with the writer's schema.

    Raises ConfigurationError when the schema is missing or none, or when fastavro is not installed.
    """
    if writer_schema is None:
        raise ConfigurationError(
            "Avro payloads need the writer's schema, because Avro data does not contain field names"
        )
    fastavro = _fastavro()
    try:
        parsed = fastavro.parse_schema(json.loads(writer_schema))
        canonical = fastavro.schema.to_parsing_canonical_form(parsed)
    except Exception as error:
        raise ConfigurationError(f"cannot read the Avro schema: {type(error).__name__}: {error}") from error
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


def from_avro_schema(text: str) -> pa.Schema:
    """Return the columns of the records of an Avro schema, given as JSON.

    Only a union with null may be null; a union of several types is the type that holds them all.
    Raises ConfigurationError when it is no schema of a record, or one that contains itself.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the Avro schema is not JSON: {error}") from None
    kind = _Walk().type(document, "")
    if not pa.types.is_struct(kind) or kind.num_fields == 0:
        raise ConfigurationError("Avro schema: a payload needs a record with fields, one for each column")
    check_names([column.name for column in kind], "Avro schema")
    return pa.schema(list(kind))


@dataclass
class _Walk:
    """Walks over one schema and remembers its named types; None stands for one that is not complete yet."""

    named: dict[str, pa.DataType | None] = field(default_factory=dict)

    def type(self, node: Any, space: str) -> pa.DataType:
        if isinstance(node, str):
            return self._by_name(node, space)
        if isinstance(node, list):
            return merged(self.type(choice, space) for choice in node)
        if not isinstance(node, dict) or "type" not in node:
            raise ConfigurationError(f"Avro schema: {node!r} is not a type")
        if isinstance(node["type"], dict | list):
            return self.type(node["type"], space)
        space = node.get("namespace", space)
        name = _full_name(str(node["name"]), space) if "name" in node else None
        if name is not None:
            self.named[name] = None
        kind = self._composed(node, space)
        if name is not None:
            self.named[name] = kind
        return kind

    def _by_name(self, name: str, space: str) -> pa.DataType:
        if name in _SIMPLE:
            return _SIMPLE[name]
        full = _full_name(name, space)
        known = full if full in self.named else name
        if known not in self.named:
            raise ConfigurationError(f"Avro schema: the type {name!r} is not defined")
        kind = self.named[known]
        if kind is None:
            raise ConfigurationError(f"Avro schema: {name!r} is recursive, which Spark does not support")
        return kind

    def _composed(self, node: dict[str, Any], space: str) -> pa.DataType:
        logical = node.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(node["precision"], node.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if node["type"] == "array":
            return list_of(self.type(node["items"], space))
        if node["type"] == "map":
            return map_of(pa.string(), self.type(node["values"], space))
        if node["type"] in {"record", "error"}:
            return pa.struct([self._field(member, space) for member in node["fields"]])
        return self._by_name(node["type"], space)

    def _field(self, member: dict[str, Any], space: str) -> pa.Field:
        kind = self.type(member["type"], space)
        choices = member["type"] if isinstance(member["type"], list) else [member["type"]]
        return pa.field(member["name"], kind, nullable="null" in choices)


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
