"""The columns of payloads whose schema nobody has written down, from a sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import msgspec
import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.payload.decoding import Form
from penstock.spark.payload.merging import BIG_WHOLE, merged, usable
from penstock.spark.payload.schema import TIMESTAMP, check_names, list_of

_DIGITS = 10**38
_SIMPLE: dict[type, pa.DataType] = {
    type(None): pa.null(), bool: pa.bool_(), float: pa.float64(), str: pa.string(), bytes: pa.binary(),
    date: pa.date32(), datetime: TIMESTAMP,
}  # fmt: skip


def infer(samples: Sequence[bytes], form: Form) -> pa.Schema:
    """Return the schema that holds all samples: fields in the order in which they first appear, all of them nullable.

    Whole numbers are bigint, objects struct; texts stay string, also those that look like a date. Fields whose types
    conflict are string. Samples that are no objects are left out.
    Raises ConfigurationError when no sample is left.
    """
    if form == "avro":
        raise ConfigurationError("Avro payloads do not name their fields: take the columns from the writer's schema")
    decode = msgspec.json.decode if form == "json" else msgspec.msgpack.decode
    kinds = []
    for sample in samples:
        try:
            record = decode(sample)
            kinds.append(_type_of(record if isinstance(record, dict) else None))
        except Exception:  # noqa: S112 - what is malformed here is malformed again when it is read, and reported there
            continue
    kind = merged(kind for kind in kinds if pa.types.is_struct(kind))
    if not pa.types.is_struct(kind) or kind.num_fields == 0:
        raise ConfigurationError(
            f"no columns can be inferred: none of {len(samples)} samples is a {form} object with fields; "
            "give the schema, or start when the stream has entries"
        )
    fields = list(usable(kind))
    check_names([field.name for field in fields], "inferred schema")
    return pa.schema(fields)


def _type_of(value: object) -> pa.DataType:
    if isinstance(value, dict):
        # Other keys than texts are no names of fields: the value can be had as text.
        named = all(isinstance(name, str) for name in value)
        return pa.struct([(name, _type_of(member)) for name, member in value.items()]) if named else pa.string()
    if isinstance(value, list):
        return list_of(merged(map(_type_of, value)))
    if type(value) is int:
        return _type_of_whole(value)
    return _SIMPLE.get(type(value), pa.string())


def _type_of_whole(value: int) -> pa.DataType:
    if -(2**63) <= value < 2**63:
        return pa.int64()
    return BIG_WHOLE if abs(value) < _DIGITS else pa.string()
