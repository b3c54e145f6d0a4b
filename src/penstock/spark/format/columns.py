"""The columns of a stream as a table, and which of them come out of the payload.

The schema that a user gives is the projection: only its columns are built.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.format.log import log_of
from penstock.spark.payload.ddl import parse_ddl, to_ddl, type_ddl
from penstock.spark.payload.decoding import PayloadFormat
from penstock.spark.runtime.link import retry
from penstock.spark.source.catalogue import beginning
from penstock.spark.source.offsets import IdRange
from penstock.spark.source.options import PayloadOptions, SourceOptions
from penstock.spark.source.rows import opened_pages

_TEXT, _BYTES, _WHOLE, _SHORT = pa.string(), pa.binary(), pa.int64(), pa.int32()
_PAIRS = pa.list_(pa.struct([pa.field("key", _TEXT), pa.field("value", _BYTES)]))
_TIME, _NAIVE_TIME = pa.timestamp("us", tz="UTC"), pa.timestamp("us")

# Name -> the Arrow types that it can have, the usual one first; in the order of the table.
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


def ddl(columns: Columns) -> str:
    """Return all columns with their usual types as Spark writes a schema."""
    return ", ".join(f"`{name}` {type_ddl(types[0])}" for name, types in columns.items())


def check(schema: pa.Schema, columns: Columns, payload: Sequence[str]) -> None:
    """Raise ConfigurationError if a column of the schema is neither one of these nor of the payload."""
    if not schema.names:
        raise ConfigurationError(f"the schema has no columns; available: {', '.join(columns)}")
    for field in schema:
        if field.name in payload:
            continue
        if field.name not in columns:
            kafka = field.name in KAFKA and "id" in columns
            raise ConfigurationError(
                f"unknown column {field.name!r}; a stream has {', '.join(columns)}. With option payload=json, "
                f"msgpack or avro, the fields of the payload are columns as well{_AS_IN_KAFKA if kafka else ''}"
            )
        allowed = columns[field.name]
        if not any(_same(field.type, kind) for kind in allowed):
            shown = " or ".join(type_ddl(kind) for kind in allowed)
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


@dataclass(frozen=True)
class PayloadColumns:
    """The columns of the payload in one table."""

    names: tuple[str, ...] = ()
    format: PayloadFormat | None = None


def payload_ddl(options: SourceOptions, columns: Columns) -> str:
    """Return the columns of the payload as Spark writes a schema; '' for a payload that is not decoded."""
    payload = options.payload
    if _is_taken_as_it_is(options):
        return ""
    is_raw = payload.form == "raw"
    schema = pa.schema([]) if is_raw else _payload_schema(options)
    if payload.column is not None:
        schema = pa.schema([pa.field(payload.column, pa.struct(list(schema)))])
    names = (payload.reason_column,) if is_raw else (payload.corrupt_column, payload.reason_column)
    extra = [pa.field(name, pa.string()) for name in names]
    if payload.mode == "PERMISSIVE":  # what cannot be decoded has null in every column
        schema = pa.schema([*(field.with_nullable(True) for field in schema), *extra])
    _check_names(schema.names, columns, payload)
    return to_ddl(schema)


def _is_taken_as_it_is(options: SourceOptions) -> bool:
    # With keys, also a raw payload may be refused.
    return options.payload.form == "raw" and options.link.protection_file is None


def _check_names(names: list[str], columns: Columns, payload: PayloadOptions) -> None:
    taken = [name for name in names if name in columns]
    if taken and payload.column is not None:
        raise ConfigurationError(
            f"option payloadColumn={payload.column!r} is a column of the entry; choose another name"
        )
    if taken:
        raise ConfigurationError(
            f"{', '.join(map(repr, taken))} is both a field of the payload and a column of the entry: set "
            "option payloadColumn='payload' to get the payload as one struct column, or choose the columns "
            "with .schema(...)"
        )
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigurationError(f"the payload has two columns {sorted(twice)}; set option payloadColumn")


def _payload_schema(options: SourceOptions) -> pa.Schema:
    from penstock.spark.payload.avro import from_avro_schema  # the driver needs them once, tasks never
    from penstock.spark.payload.schemas import from_json_schema, from_model, infer

    payload = options.payload
    assert payload.form != "raw"
    if payload.schema is not None:
        return parse_ddl(payload.schema)
    if payload.model is not None:
        return from_model(payload.model)
    if payload.json_schema is not None:
        try:
            return from_json_schema(json.loads(payload.json_schema))
        except ValueError as error:
            raise ConfigurationError(f"option payloadJsonSchema: {error}") from None
    if payload.form == "avro" and payload.avro_schema is not None:
        return from_avro_schema(payload.avro_schema)  # a sample would not name its fields
    return infer(_sample(options), payload.form)


def _sample(options: SourceOptions) -> list[bytes]:
    # The newest entries say best what is written today, but a stream can only be read forwards: from the first on.
    log = log_of(replace(options, fetch_size=min(options.payload.sample_rows, 1_000), fail_on_data_loss=False))
    wanted, name = options.payload.sample_rows, options.payload.field.encode()
    found: list[bytes] = []

    def gather() -> None:
        found.clear()
        states = log.look(log.names())
        ranges = [
            IdRange(stream, beginning(state).id, state.last_id, min(state.length, wanted))
            for stream, state in states.items()
            if state is not None
        ]
        for page in log.scanner().pages(ranges):
            opened = [page] if options.link.protection_file is None else opened_pages([page], log.client)[0]
            for _, fields in opened[0][1]:
                found.extend(value for key, value in zip(fields[::2], fields[1::2], strict=True) if key == name)
            if len(found) >= wanted:
                return

    retry(gather, options.retry_timeout.total_seconds())
    if not found:
        raise ConfigurationError(
            "cannot infer the columns of the payload, because the streams are empty: set option payloadSchema, "
            "for example 'order_id bigint, total double'"
        )
    return found[:wanted]


def payload_columns(options: SourceOptions, columns: Columns, schema: pa.Schema) -> PayloadColumns:
    """Return what a table with this schema takes of the payload."""
    payload = options.payload
    if _is_taken_as_it_is(options):
        return PayloadColumns()
    corrupt = payload.corrupt_column if payload.corrupt_column in schema.names else None
    reason = payload.reason_column if payload.reason_column in schema.names else None
    special = {corrupt, reason}
    if payload.column is not None:
        names = tuple(name for name in (payload.column, corrupt, reason) if name is not None and name in schema.names)
        wanted = _struct_fields(schema, payload.column) if payload.column in schema.names else []
    else:
        names = tuple(name for name in schema.names if name not in columns)
        wanted = [field for field in schema if field.name in names and field.name not in special]
    strict = [field.name for field in wanted if not field.nullable]
    if strict and payload.mode == "PERMISSIVE":
        raise ConfigurationError(
            f"column {strict[0]!r} is NOT NULL, but in mode PERMISSIVE a payload that cannot be decoded is null "
            "in every column: set mode DROPMALFORMED or FAILFAST, or remove NOT NULL"
        )
    for name in special - {None}:
        if schema.field(name).type != pa.string():
            raise ConfigurationError(
                f"column {name!r} holds payloads that could not be decoded, or why: it must be a string"
            )
    if not names and payload.mode == "PERMISSIVE":
        return PayloadColumns()  # the payload is not needed
    made = PayloadFormat(
        form=payload.form,
        schema=pa.schema(wanted),
        mode=payload.mode,
        corrupt_column=corrupt,
        reason_column=reason,
        writer_schema=payload.avro_schema,
    )
    return PayloadColumns(names, made)


def _struct_fields(schema: pa.Schema, name: str) -> list[pa.Field]:
    kind = schema.field(name).type
    if not pa.types.is_struct(kind):
        raise ConfigurationError(f"column {name!r} holds the payload (option payloadColumn): it must be a struct")
    return [kind.field(index) for index in range(kind.num_fields)]
