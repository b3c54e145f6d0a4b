"""Arrow schema -> the msgspec types into which a payload is decoded: one object a row, with an attribute a column.

Two types are built from one schema. The quick one uses msgspec's own types, checked while the bytes are parsed. The
careful one gives each value to `coercion`, which accepts more and words the reasons. A row goes the careful way when
the quick one refuses it; for every row that the quick one accepts, both give the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.payload.coercion import FLOAT_MAX, Coerce, coercer
from penstock.spark.payload.schema import type_ddl

# Types are values here: they are computed from a schema that is known only at run time.
RowType = Any
_Leaf = Callable[[pa.DataType], RowType]


class _FitsAnything(type):
    """Lets the result of a coercion pass: msgspec asks whether it is an instance of the type it stands for."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


@dataclass(frozen=True)
class RowTypes:
    """The types of one schema, and the names of their attributes in the order of the columns.

    The loose one takes any value for a column: it only leaves out the fields that nobody asked for.
    """

    quick: RowType
    careful: RowType
    loose: RowType
    attributes: tuple[str, ...]


def row_types(schema: pa.Schema) -> RowTypes:
    """Return the types of a schema; raises ConfigurationError for what Spark does not have."""
    for field in schema:
        type_ddl(field.type, field.name)
    attributes = tuple(f"column_{index}" for index in range(len(schema)))
    quick, careful = (_row_type(schema, attributes, leaf) for leaf in (_quick_leaf, _careful_leaf))
    anything: list[Any] = [(attribute, Any, msgspec.UNSET) for attribute in attributes]
    loose = msgspec.defstruct("Loose", anything, rename=dict(zip(attributes, schema.names, strict=True)))
    return RowTypes(quick, careful, loose, attributes)


def coerce_leaf(kind: RowType, value: object) -> object:
    """Is the `dec_hook` of every decoder: hands a value to the coercion of its column."""
    return kind.coerce(value)


def _row_type(schema: pa.Schema, attributes: tuple[str, ...], leaf: _Leaf) -> RowType:
    fields: list[Any] = []
    for attribute, field in zip(attributes, schema, strict=True):
        kind = _type(field.type, leaf)
        fields.append((attribute, kind | None, None) if field.nullable else (attribute, kind))
    # gc=False: rows hold no cycles, and a collector that walks over 10,000 of them costs as much as decoding does.
    return msgspec.defstruct(
        "Row", fields, rename=dict(zip(attributes, schema.names, strict=True)), kw_only=True, gc=False
    )


def _type(kind: pa.DataType, leaf: _Leaf) -> RowType:
    if pa.types.is_list(kind):
        return list[_of_field(kind.value_field, leaf)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[_key_type(kind), _of_field(kind.item_field, leaf)]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return _struct_type(kind, leaf)
    return leaf(kind)


def _of_field(field: pa.Field, leaf: _Leaf) -> RowType:
    kind = _type(field.type, leaf)
    return kind | None if field.nullable else kind


def _key_type(kind: pa.DataType) -> RowType:
    if pa.types.is_string(kind.key_type):
        return str
    if pa.types.is_integer(kind.key_type):
        return _quick_leaf(kind.key_type)
    raise ConfigurationError(f"{type_ddl(kind)}: the keys of a map in a payload are of type string or a whole number")


def _struct_type(kind: pa.DataType, leaf: _Leaf) -> RowType:
    # A dict, because it is what pa.array takes for a struct.
    members = {field.name: _of_field(field, leaf) for field in kind}
    optional = {field.name for field in kind if field.nullable}
    fields = {name: NotRequired[member] if name in optional else member for name, member in members.items()}
    return TypedDict("Struct", fields)  # type: ignore[operator]


def _quick_leaf(kind: pa.DataType) -> RowType:
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if pa.types.is_decimal(kind):
        return Decimal  # Arrow counts the digits, when it builds the column
    if pa.types.is_timestamp(kind):
        return datetime if kind.tz else Annotated[datetime, msgspec.Meta(tz=False)]
    quick: dict[pa.DataType, RowType] = {
        pa.bool_(): bool, pa.float64(): float, pa.string(): str, pa.binary(): bytes, pa.date32(): date,
        pa.float32(): Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)],
    }  # fmt: skip
    return quick.get(kind) or _careful_leaf(kind)


def _careful_leaf(kind: pa.DataType) -> RowType:
    coerce: Coerce = coercer(kind)
    return _FitsAnything("Leaf", (), {"coerce": staticmethod(coerce)})
