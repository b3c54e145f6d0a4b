"""Payload bytes -> typed Arrow columns.

Each payload is decoded by msgspec into one typed object, whose attributes become columns. What is accepted for which
type stands in `coercion`. For the rest:

* a field that is missing or null gives null; for a NOT NULL column the payload is malformed;
* fields that the schema does not name are skipped; of a name that appears twice the last value counts;
* a payload that is not exactly one object, or has a field that does not fit, is malformed as a whole. PERMISSIVE gives
  null in all its columns, also in those that would fit and in NOT NULL ones, with the payload in the corrupt column;
  DROPMALFORMED leaves it out; FAILFAST raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import msgspec
import pyarrow as pa

from penstock.errors import ConfigurationError, DecodeError
from penstock.spark.payload.avro import record_reader
from penstock.spark.payload.coercion import NumberText, RowType, RowTypes, coerce_leaf, row_types
from penstock.spark.payload.ddl import check_names

Form = Literal["json", "msgpack", "avro", "raw"]
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
Row = Any  # an object of a type that row_types made
_Read = Callable[[Any], Row]  # of bytes; for None, which stands for no payload, it raises
NO_PAYLOAD: Final = "no payload"
FORM_NAMES: Final = {"json": "JSON", "msgpack": "MessagePack", "avro": "Avro"}

_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_NOT_OBJECT = re.compile(r"Expected `object`, got `(.*)`")
_PREFIX = re.compile(r"^(JSON|MessagePack data) is malformed: ")


class MalformedPayload(DecodeError):
    """A payload does not fit the schema, and the mode is FAILFAST; `row` is its index in what was to be decoded."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"payload {row} is malformed: {reason}")
        self.row = row
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        """Let it cross from a Python worker."""
        return type(self), (self.row, self.reason)


@dataclass(frozen=True)
class PayloadFormat:
    """How payloads are to be read: their form, the columns wanted of them in order, and what becomes of malformed ones.

    Raises ConfigurationError when that does not go together.
    """

    form: Form
    schema: pa.Schema
    mode: Mode = "PERMISSIVE"
    corrupt_column: str | None = None
    reason_column: str | None = None
    writer_schema: str | None = None
    """The Avro schema, as JSON, with which the payloads were written."""

    def __post_init__(self) -> None:
        for name, value, choices in (("form", self.form, get_args(Form)), ("mode", self.mode, get_args(Mode))):
            if value not in choices:
                raise ConfigurationError(f"payload {name}={value!r} must be one of {', '.join(choices)}")
        extra = [name for name in (self.corrupt_column, self.reason_column) if name is not None]
        check_names([*self.schema.names, *extra], "payload columns")
        _decoder_of(self)


@dataclass(frozen=True)
class Decoded:
    """The columns of decoded payloads, all of the same length.

    In DROPMALFORMED they hold only the rows that are left; `kept` are the indices of these, or None when all are.
    """

    columns: list[pa.Array]
    corrupt: pa.Array | None
    reason: pa.Array | None
    kept: pa.Array | None


def decode(
    payloads: Sequence[bytes | None], fmt: PayloadFormat, refused: Mapping[int, str] = MappingProxyType({})
) -> Decoded:
    """Decode payloads; None stands for an entry without a payload, which is malformed. `refused` says why others are.

    Raises MalformedPayload in FAILFAST, for the first malformed one.
    """
    columns, reasons = _block(payloads, fmt)
    reasons.update(refused)
    if reasons and fmt.mode == "FAILFAST":
        raise MalformedPayload(*next(iter(reasons.items())))
    kept = None
    count = len(payloads)
    if reasons and fmt.mode == "DROPMALFORMED":
        kept = pa.array([row for row in range(count) if row not in reasons], pa.int64())
        columns, reasons, count = [column.take(kept) for column in columns], {}, len(kept)
    corrupt = {row: _as_text(payloads[row]) for row in reasons}
    return Decoded(
        columns,
        corrupt=None if fmt.corrupt_column is None else _sparse(corrupt, count),
        reason=None if fmt.reason_column is None else _sparse(reasons, count),
        kept=kept,
    )


@lru_cache(maxsize=64)
def _decoder_of(fmt: PayloadFormat) -> RowDecoder:
    # Building the types costs a millisecond: once per process and format, not once per batch.
    return row_decoder(fmt.form, fmt.schema, fmt.writer_schema)


def _block(payloads: Sequence[bytes | None], fmt: PayloadFormat) -> tuple[list[pa.Array], dict[int, str]]:
    decoder = _decoder_of(fmt)
    rows, reasons = decoder.rows(payloads)
    try:
        return _columns(rows, decoder, fmt.schema), reasons
    except pa.ArrowInvalid:
        # The one thing that is not checked while bytes are parsed: decimals with more digits than their column has.
        rows, reasons = decoder.careful_rows(payloads)
        return _columns(rows, decoder, fmt.schema), reasons


def _columns(rows: list[Row], decoder: RowDecoder, schema: pa.Schema) -> list[pa.Array]:
    return [
        pa.array(list(map(attrgetter(attribute), rows)), field.type)
        for attribute, field in zip(decoder.types.attributes, schema, strict=True)
    ]


def _as_text(payload: bytes | None) -> str | None:
    return None if payload is None else payload.decode("utf-8", "backslashreplace")


def _sparse(texts: dict[int, str] | dict[int, str | None], count: int) -> pa.Array:
    if not texts:
        return pa.nulls(count, pa.string())
    return pa.array([texts.get(row) for row in range(count)], pa.string())


@dataclass(frozen=True)
class RowDecoder:
    """Decodes the payloads of one form into rows of one schema."""

    form: str
    types: RowTypes
    quick: _Read
    careful: _Read

    def rows(self, payloads: Sequence[bytes | None]) -> tuple[list[Row], dict[int, str]]:
        """Return one row per payload, and the reasons of those that are malformed, whose rows hold only nulls."""
        return self._rows(payloads, self.quick)

    def careful_rows(self, payloads: Sequence[bytes | None]) -> tuple[list[Row], dict[int, str]]:
        """Return the same, but let no row go the quick way."""
        return self._rows(payloads, self.careful)

    def _rows(self, payloads: Sequence[bytes | None], read: _Read) -> tuple[list[Row], dict[int, str]]:
        rows: list[Row] = []
        reasons: dict[int, str] = {}
        left = iter(payloads)
        while len(rows) < len(payloads):
            try:
                # The loop runs in C. When a payload is refused, the rows before it are already in the list and the
                # iterator is past it: one bad payload costs the others nothing.
                rows.extend(map(read, left))
            except Exception:
                row = len(rows)
                rows.append(self._careful_row(payloads[row], row, reasons))
        return rows, reasons

    def _careful_row(self, payload: bytes | None, row: int, reasons: dict[int, str]) -> Row:
        if payload is None:
            reasons[row] = NO_PAYLOAD
            return self.empty()
        try:
            return self.careful(payload)
        except Exception as error:
            reasons[row] = reason_of(error, self.form)
            return self.empty()

    def empty(self) -> Row:
        """Return a row of nulls."""
        return self.types.quick(**dict.fromkeys(self.types.attributes))


def row_decoder(form: str, schema: pa.Schema, writer_schema: str | None) -> RowDecoder:
    """Return the decoder of a form; raises ConfigurationError when form and schema do not go together."""
    types = row_types(schema)
    if form == "raw":  # it has no columns, and is malformed only where it is refused
        return RowDecoder(form, types, lambda _: types.quick(), lambda _: types.careful())
    if form == "avro":
        read = record_reader(writer_schema)
        return RowDecoder(form, types, _converting(read, types.quick), _converting(read, types.careful))
    if form == "json":
        return RowDecoder(form, types, msgspec.json.Decoder(types.quick).decode, _careful_json(types, schema.names))
    return RowDecoder(form, types, _msgpack(types.quick), _msgpack(types.careful))


def _careful_json(types: RowTypes, names: list[str]) -> _Read:
    # In two steps: of a name that appears twice only the last value is to be judged, and a parser judges each.
    parse = msgspec.json.Decoder(types.loose, float_hook=NumberText).decode

    def decode(payload: bytes) -> Row:
        values = zip(names, msgspec.structs.astuple(parse(payload)), strict=True)
        present = {name: value for name, value in values if value is not msgspec.UNSET}
        return msgspec.convert(present, types.careful, dec_hook=coerce_leaf, str_keys=True)

    return decode


def _msgpack(kind: RowType) -> _Read:
    return msgspec.msgpack.Decoder(kind, dec_hook=coerce_leaf).decode


def _converting(read: Callable[[bytes], object], kind: RowType) -> _Read:
    def decode(payload: bytes) -> Row:
        return msgspec.convert(read(payload), kind, dec_hook=coerce_leaf)

    return decode


def reason_of(error: Exception, form: str) -> str:
    """Return why decoding failed: `not JSON: ...`, `not an object: ...` or `field total: ...`."""
    if isinstance(error, msgspec.ValidationError):
        return _reason_of_value(str(error))
    if isinstance(error, RecursionError):
        return f"not {FORM_NAMES[form]}: nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not {FORM_NAMES[form]}: a text is not UTF-8"
    said = _PREFIX.sub("", str(error)) or type(error).__name__
    return f"not {FORM_NAMES[form]}: {said[:1].lower()}{said[1:]}"


def _reason_of_value(text: str) -> str:
    # msgspec ends its texts with the place, as in: Expected `int`, got `str` - at `$.items[0].qty`
    said, found, place = text.rpartition(" - at `$")
    if not found:
        said, place = text, "`"
    path = place[:-1].removeprefix(".")
    missing = _MISSING.fullmatch(said)
    if missing is not None:
        return f"field {path}.{missing[1]}: missing" if path else f"field {missing[1]}: missing"
    no_object = _NOT_OBJECT.fullmatch(said)
    if no_object is not None and not path:
        return f"not an object: got {no_object[1]}"
    plain = said.replace(" | null`", "`").replace("`", "") if said.startswith("Expected `") else said
    return f"field {path}: {plain[:1].lower()}{plain[1:]}"
