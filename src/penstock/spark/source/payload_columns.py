"""Which columns of a table come out of the payload, and how it is decoded into them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.payload.decoding import PayloadFormat
from penstock.spark.payload.schema import parse_ddl, to_ddl
from penstock.spark.runtime.retry import retry
from penstock.spark.source.columns import Columns
from penstock.spark.source.loss import beginning
from penstock.spark.source.offsets import IdRange
from penstock.spark.source.options import PayloadOptions, SourceOptions
from penstock.spark.source.redis_log import log_of


@dataclass(frozen=True)
class PayloadColumns:
    """The columns of the payload in one table."""

    names: tuple[str, ...] = ()
    format: PayloadFormat | None = None


def ddl(options: SourceOptions, columns: Columns) -> str:
    """Return the columns of the payload as Spark writes a schema; '' for a payload that is not decoded."""
    payload = options.payload
    if payload.form == "raw":
        return ""
    schema = _payload_schema(options)
    if payload.column is not None:
        schema = pa.schema([pa.field(payload.column, pa.struct(list(schema)))])
    extra = [pa.field(payload.corrupt_column, pa.string()), pa.field(payload.reason_column, pa.string())]
    if payload.mode == "PERMISSIVE":  # what cannot be decoded has null in every column
        schema = pa.schema([*(field.with_nullable(True) for field in schema), *extra])
    _check_names(schema.names, columns, payload)
    return to_ddl(schema)


def _check_names(names: list[str], columns: Columns, payload: PayloadOptions) -> None:
    taken = [name for name in names if name in columns]
    if taken and payload.column is not None:
        raise ConfigurationError(
            f"option payloadColumn={payload.column!r} is a column of the entry; choose another name"
        )
    if taken:
        raise ConfigurationError(
            f"{', '.join(map(repr, taken))} is a field of the payload and a column of the entry as well: set option "
            "payloadColumn='payload' to get the payload as one struct column, or choose the columns with .schema(...)"
        )
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigurationError(f"the payload has two columns {sorted(twice)}; set option payloadColumn")


def _payload_schema(options: SourceOptions) -> pa.Schema:
    from penstock.spark.payload.avro import from_avro_schema  # the driver needs them once, tasks never
    from penstock.spark.payload.infer import infer
    from penstock.spark.payload.json_schema import from_json_schema
    from penstock.spark.payload.model import from_model

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
        for _, entries in log.scanner().pages(ranges):
            for _, fields in entries:
                found.extend(value for key, value in zip(fields[::2], fields[1::2], strict=True) if key == name)
            if len(found) >= wanted:
                return

    retry(gather, options.retry_timeout.total_seconds())
    if not found:
        raise ConfigurationError(
            "there is nothing in the streams yet from which the columns of the payload could be told: give them with "
            "option payloadSchema, for example 'order_id bigint, total double'"
        )
    return found[:wanted]


def chosen(options: SourceOptions, columns: Columns, schema: pa.Schema) -> PayloadColumns:
    """Return what a table with this schema takes of the payload."""
    payload = options.payload
    if payload.form == "raw":
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
            f"column {strict[0]!r} is NOT NULL, but a payload that cannot be decoded has null in every column in mode "
            "PERMISSIVE: choose mode DROPMALFORMED or FAILFAST, or leave NOT NULL out"
        )
    for name in special - {None}:
        if schema.field(name).type != pa.string():
            raise ConfigurationError(f"column {name!r} holds what could not be decoded: it must be a string")
    if not names and payload.mode == "PERMISSIVE":
        return PayloadColumns()  # nobody looks at the payload
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
