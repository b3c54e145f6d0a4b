"""Payload bytes -> rows: quickly as long as they fit the schema, carefully where they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.spark.payload.avro import record_reader
from penstock.spark.payload.coercion import NumberText
from penstock.spark.payload.reasons import NO_PAYLOAD, reason_of
from penstock.spark.payload.row_types import RowType, RowTypes, coerce_leaf, row_types

Row = Any  # an object of a type that row_types made
_Read = Callable[[Any], Row]  # of bytes; for None, which stands for no payload, it raises


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
                # iterator stands behind it: one bad payload costs the others nothing.
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
