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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Literal, get_args

import pyarrow as pa

from penstock.errors import ConfigurationError, DecodeError
from penstock.spark.payload.row_decoder import Row, RowDecoder, row_decoder
from penstock.spark.payload.schema import check_names

Form = Literal["json", "msgpack", "avro"]
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]


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

    @property
    def output_schema(self) -> pa.Schema:
        """The payload columns as they come out: in PERMISSIVE a malformed payload gives null in all of them."""
        if self.mode != "PERMISSIVE":
            return self.schema
        return pa.schema([field.with_nullable(nullable=True) for field in self.schema])


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
