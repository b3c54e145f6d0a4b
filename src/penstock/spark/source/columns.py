"""The columns of a stream as a table. The schema that a user gives is the projection: only its columns are built."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import ConfigurationError

_TEXT, _BYTES, _WHOLE, _SHORT = pa.string(), pa.binary(), pa.int64(), pa.int32()
_PAIRS = pa.list_(pa.struct([pa.field("key", _TEXT), pa.field("value", _BYTES)]))
_TIME, _NAIVE_TIME = pa.timestamp("us", tz="UTC"), pa.timestamp("us")

# Name -> the Arrow types in which it can be had, the usual one first. In the order in which all of them are shown.
ENTRY = {
    "stream": [_TEXT],
    "id": [_TEXT],
    "ms": [_WHOLE],
    "seq": [_WHOLE],
    "timestamp": [_TIME, _NAIVE_TIME],
    "data": [_BYTES, _TEXT],
    "key": [_TEXT, _BYTES],
    "headers": [pa.map_(_TEXT, _TEXT)],
    "message_id": [_TEXT],
    "fields": [pa.map_(_TEXT, _BYTES), pa.map_(_TEXT, _TEXT)],
}
DEAD_LETTER = {
    **ENTRY,
    "reason": [_TEXT],
    "source_stream": [_TEXT],
    "source_id": [_TEXT],
    "group": [_TEXT],
    "consumer": [_TEXT],
    "error": [_TEXT],
    "error_text": [_TEXT],
    "traceback": [_TEXT],
    "cut": [_TEXT],
    "attempts": [_WHOLE],
    "deliveries": [_WHOLE],
    "dead_at": [_TIME, _NAIVE_TIME],
    "redrives": [_WHOLE],
}
PENDING = {
    "stream": [_TEXT],
    "group": [_TEXT],
    "id": [_TEXT],
    "ms": [_WHOLE],
    "seq": [_WHOLE],
    "timestamp": [_TIME, _NAIVE_TIME],
    "consumer": [_TEXT],
    "idle_ms": [_WHOLE],
    "deliveries": [_WHOLE],
}
# As Spark's Kafka source names them. A stream has one partition; `offset` orders as ids do.
KAFKA = {
    "key": [_BYTES, _TEXT],
    "value": [_BYTES, _TEXT],
    "topic": [_TEXT],
    "partition": [_SHORT],
    "offset": [_WHOLE],
    "timestamp": [_TIME, _NAIVE_TIME],
    "timestampType": [_SHORT],
    "headers": [_PAIRS],
}
Columns = dict[str, list[pa.DataType]]
_AS_IN_KAFKA = "; option columns=kafka gives the columns of Spark's Kafka source"
_DDL = {
    _TEXT: "string", _BYTES: "binary", _WHOLE: "bigint", _SHORT: "int", _TIME: "timestamp",
    _PAIRS: "array<struct<key:string,value:binary>>",
    pa.map_(_TEXT, _TEXT): "map<string,string>", pa.map_(_TEXT, _BYTES): "map<string,binary>",
}  # fmt: skip


def ddl(columns: Columns) -> str:
    """Return all columns with their usual types as Spark writes a schema."""
    return ", ".join(f"`{name}` {_DDL[types[0]]}" for name, types in columns.items())


def check(schema: pa.Schema, columns: Columns, payload: Sequence[str]) -> None:
    """Raise ConfigurationError if a column of the schema is neither one of these nor of the payload."""
    if not schema.names:
        raise ConfigurationError(f"the schema has no column; choose of {', '.join(columns)}")
    for field in schema:
        if field.name in payload:
            continue
        if field.name not in columns:
            kafka = field.name in KAFKA and "id" in columns
            raise ConfigurationError(
                f"there is no column {field.name!r}; a stream has {', '.join(columns)}. Fields of the payload are "
                f"columns with option payload=json, msgpack or avro{_AS_IN_KAFKA if kafka else ''}"
            )
        allowed = columns[field.name]
        if not any(_same(field.type, kind) for kind in allowed):
            shown = " or ".join(_DDL.get(kind, "timestamp_ntz") for kind in allowed)
            raise ConfigurationError(f"column {field.name!r} cannot be {field.type}; it is {shown}")


def _same(given: pa.DataType, known: pa.DataType) -> bool:
    # Whether the values of a map may be null is not the user's to say and makes no difference here.
    if pa.types.is_map(given) and pa.types.is_map(known):
        return bool(given.key_type == known.key_type and given.item_type == known.item_type)
    if pa.types.is_list(given) and pa.types.is_list(known):
        return _same(given.value_type, known.value_type)
    if pa.types.is_struct(given) and pa.types.is_struct(known):
        return [(each.name, each.type) for each in given] == [(each.name, each.type) for each in known]
    return bool(given == known)
