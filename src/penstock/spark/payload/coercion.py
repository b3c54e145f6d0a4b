"""Makes the values of a payload fit their columns, or says why they do not.

A payload is decoded into msgspec types, one object a row, with an attribute a column. Two types are built from one
Arrow schema. The quick one uses msgspec's own types, checked while the bytes are parsed. The careful one gives each
value to the rules below, which accept more and word the reasons. A row goes the careful way when the quick one refuses
it; for every row that the quick one accepts, both give the same values.

The rules follow Spark's from_json where that is sensible:

* whole numbers: a number without point or exponent, in the range of the type; `1.0` and `"1"` do not fit;
* float, double: any number in range, and the texts NaN, Infinity, -Infinity, +INF, INF, -INF;
* decimal: a number or a text that is one, rounded half up to the scale; too many digits do not fit;
* string: any value; what is no text becomes the JSON of it, so `1` gives "1" and `{"a": 1}` gives '{"a":1}';
* boolean: true and false; binary: bytes, or a text in base64; date: a text YYYY-MM-DD or a date;
* timestamp: an ISO 8601 text (without an offset: UTC; more than six digits of a second are rounded), a date (midnight),
  or a number of seconds since 1970; timestamp_ntz: the same without an offset.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.payload.ddl import type_ddl

Coerce = Callable[[object], object]

FLOAT_MAX = 3.4028234663852886e38
_SHOWN = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_FINITE = {
    "NaN": math.nan, "Infinity": math.inf, "+INF": math.inf, "INF": math.inf, "-Infinity": -math.inf, "-INF": -math.inf,
}  # fmt: skip
# What RFC 3339 does not allow and Spark does: a date alone, and a time without seconds.
_SHORT_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
# Types are values here: they are computed from a schema that is known only at run time.
RowType = Any
_Leaf = Callable[[pa.DataType], RowType]


class NumberText:
    """A JSON number with a point or an exponent, kept as it was written: decimals and strings want every digit."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def coercer(kind: pa.DataType) -> Coerce:
    """Return the function that makes a value fit a type without fields or elements, or raises ValueError."""
    name = type_ddl(kind)
    fit = _fitting(kind)

    def coerce(value: object) -> object:
        try:
            return fit(value)
        except (ValueError, TypeError, ArithmeticError):
            raise ValueError(f"expected {name}, got {shown(value)}") from None

    return coerce


def shown(value: object) -> str:
    """Return a value as a reason shows it: as JSON writes it, but short."""
    text = repr(value) if isinstance(value, str | bytes) else _json(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _fitting(kind: pa.DataType) -> Coerce:
    if pa.types.is_integer(kind):
        return _whole(kind.bit_width)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return _moment if kind.tz else _timestamp_ntz
    simple: dict[pa.DataType, Coerce] = {
        pa.bool_(): _boolean, pa.float32(): _float, pa.float64(): _double, pa.string(): _string, pa.binary(): _binary,
        pa.date32(): _date, pa.null(): _null,
    }  # fmt: skip
    return simple[kind]


def _null(value: object) -> object:
    if value is not None:
        raise ValueError
    return value


def _boolean(value: object) -> object:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _whole(bits: int) -> Coerce:
    limit = 1 << (bits - 1)

    def fit(value: object) -> object:
        if type(value) is not int or not -limit <= value < limit:
            raise ValueError
        return value

    return fit


def _double(value: object) -> float:
    if isinstance(value, NumberText):
        number = float(value.text)
        if math.isinf(number):
            raise ValueError
        return number
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError
    return float(value)


def _float(value: object) -> float:
    number = _double(value)
    if math.isfinite(number) and abs(number) > FLOAT_MAX:
        raise ValueError
    return number


def _decimal(precision: int, scale: int) -> Coerce:
    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=precision, rounding=ROUND_HALF_UP, traps=[InvalidOperation])

    def fit(value: object) -> object:
        if type(value) is NumberText:
            number = Decimal(value.text)
        elif type(value) is int or isinstance(value, Decimal):
            number = Decimal(value)
        elif isinstance(value, float):
            number = Decimal(repr(value))
        elif isinstance(value, str):
            number = Decimal(value)
        else:
            raise ValueError
        fitted = number.quantize(unit, context=context)
        if not fitted.is_finite():
            raise ValueError
        return fitted

    return fit


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise ValueError
    if isinstance(value, bytes):
        return value.decode()
    text = _json(value)
    # Dates, decimals and the like of other formats are texts in JSON: their quotes are not part of the value.
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def _json(value: object) -> str:
    if isinstance(value, NumberText):
        return value.text
    return msgspec.json.encode(value, enc_hook=_as_written).decode()


def _as_written(value: object) -> object:
    if isinstance(value, NumberText):
        return msgspec.Raw(value.text.encode())
    if isinstance(value, msgspec.msgpack.Ext):
        return {"code": value.code, "data": value.data}
    raise NotImplementedError  # how msgspec expects to learn that there is no other form


def _binary(value: object) -> object:
    return msgspec.convert(value, bytes)


def _date(value: object) -> object:
    if isinstance(value, datetime):
        raise TypeError  # the date of a moment depends on a time zone, which is unknown
    return msgspec.convert(value, date)


def _timestamp_ntz(value: object) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is None:
        return moment
    if isinstance(value, NumberText | int | float):
        return moment.replace(tzinfo=None)
    raise ValueError


def _moment(value: object) -> datetime:
    # Arrow takes a moment without an offset as UTC, and converts all others.
    if isinstance(value, str):
        if _SHORT_TIME.fullmatch(value):
            return datetime.fromisoformat(value)
        return msgspec.convert(value, datetime)
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - a date has no zone; the caller decides
    if isinstance(value, NumberText):
        return _EPOCH + timedelta(microseconds=int((Decimal(value.text) * 1_000_000).to_integral_value()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return _EPOCH + timedelta(seconds=value)


# --- the types of a row -------------------------------------------------------------------------------


class _FitsAnything(type):
    """Lets the result of a coercion pass: msgspec asks whether it is an instance of the type it stands for."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


@dataclass(frozen=True)
class RowTypes:
    """The types of one schema, and the names of their attributes in the order of the columns.

    The loose one takes any value for a column: it only drops fields that were not requested.
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
    raise ConfigurationError(f"{type_ddl(kind)}: the keys of a map in a payload must be strings or whole numbers")


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
