"""Columns that become one JSON or msgpack object per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from penstock.errors import EncodeError

Form: TypeAlias = Literal["raw", "json", "msgpack"]
Failure: TypeAlias = Callable[[int, str, str], EncodeError]  # row, column, why -> the error
_REFUSALS = (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError)


class ObjectEncoder:
    """Encodes rows as objects: null stays null, times are in UTC, bytes are base64 in JSON, decimals numbers in it."""

    def __init__(self, names: Sequence[str], form: Form) -> None:
        self._names = list(names)
        # A struct, since it is encoded several times faster than a dict; its fields are renamed, for a column may be
        # called anything.
        fields = [f"c{n}" for n in range(len(self._names))]
        self._struct = msgspec.defstruct(
            "Row", fields, rename=dict(zip(fields, self._names, strict=True)), gc=False, eq=False, order=False
        )
        if form == "msgpack":
            self._dumps: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        else:
            self._dumps = msgspec.json.Encoder(decimal_format="number").encode

    def encode(self, batch: Any, failure: Failure) -> Any:
        """Return an array with the object of each row; `failure` makes the error for a row that has none."""
        columns = [self._values(batch.column(name), name, failure) for name in self._names]
        dumps, struct = self._dumps, self._struct
        try:
            made = [dumps(struct(*row)) for row in zip(*columns, strict=True)]
        except _REFUSALS:
            made = [self._one(n, row, failure) for n, row in enumerate(zip(*columns, strict=True))]
        return pa.array(made, pa.binary())

    def _one(self, number: int, row: tuple[Any, ...], failure: Failure) -> bytes:
        for name, value in zip(self._names, row, strict=True):
            try:
                self._dumps(value)
            except _REFUSALS as error:
                raise failure(number, name, f"cannot be encoded: {error}") from None
        return self._dumps(self._struct(*row))

    @staticmethod
    def _values(column: Any, name: str, failure: Failure) -> list[Any]:
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", tz="UTC"))
        try:
            values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
        except (UnicodeDecodeError, KeyError):
            for number in range(len(column)):
                try:
                    column[number].as_py(maps_as_pydicts="strict")
                except UnicodeDecodeError:
                    raise failure(number, name, "is no text in UTF-8") from None
                except KeyError as error:
                    raise failure(number, name, f"has a key twice: {error}") from None
            raise
        return values
