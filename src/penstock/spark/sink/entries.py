"""Rows become packed entries: arguments in the protocol of Redis, made a column at a time and never row by row.

Arrow joins constants, lengths and values of a whole batch into one buffer, from which slices are sent as they are.
Maps (`headers`, `fields`) are the exception: they are packed row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import envelope
from penstock.errors import EncodeError, PayloadTooLarge
from penstock.spark.sink.options import Columns, Form

Array: TypeAlias = Any  # pyarrow has no types
Failure: TypeAlias = Callable[[int, str, str], EncodeError]  # row, column, why -> the error
_REFUSALS = (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError)
_BINARY = pa.binary()
_END = pa.scalar(b"\r\n", _BINARY)
_NOTHING = pa.scalar(b"", _BINARY)
_MOST_BYTES = 1 << 28  # of a batch that is packed at once: Arrow's offsets end at 2 GB
MAX_NAME = 512  # characters, as StreamProducer has it
MAX_FIELDS = 2_000  # of one entry: Lua's stack holds about 8,000 arguments


@dataclass(frozen=True)
class Packed:
    """Entries of some rows: the packed arguments of each, and how many those are (a number if all have the same)."""

    lines: Array
    arguments: int | Array
    streams: Array | None

    def select(self, rows: Array) -> Packed:
        """Return the entries of some of the rows."""
        arguments = self.arguments if isinstance(self.arguments, int) else self.arguments.take(rows)
        return Packed(self.lines.take(rows), arguments, None)


class Packer:
    """Packs the rows of one partition; errors name the number of the row."""

    def __init__(
        self, columns: Columns, form: Form, content_type: str | None, max_bytes: int, *, is_by_column: bool
    ) -> None:
        self._columns, self._max_bytes, self._is_by_column = columns, max_bytes, is_by_column
        self._encoder = ObjectEncoder(columns.payload, form) if columns.payload else None
        self._content_type = content_type
        others = (columns.key, columns.message_id, columns.headers, columns.fields, content_type)
        self.is_plain = not any(others)
        """Whether entries have nothing but `data`."""
        self._row = 0
        self._batch: Array = None

    def pack(self, batch: Array, *, is_bare: bool) -> Iterator[Packed]:
        """Pack a batch; bare means the payload alone, without the name of its field.

        Raises: EncodeError, PayloadTooLarge: the row, by its number in the partition, and the column.
        """
        pieces = max(1, -(-batch.nbytes // _MOST_BYTES))
        rows = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, rows):
            self._batch = batch.slice(start, rows)
            yield self._pack(is_bare)
            self._row += self._batch.num_rows

    def _pack(self, is_bare: bool) -> Packed:
        names = self._columns
        streams = self._streams() if self._is_by_column else None
        data = self._data()
        if is_bare:
            return Packed(_bulk(data), 1, streams)
        parts: list[Array] = []
        arguments: int | Array = 0
        given = [(envelope.DATA, data)]
        given += [(envelope.MESSAGE_ID, self._name(names.message_id)), (envelope.KEY, self._name(names.key))]
        given += [(envelope.HEADERS, self._headers())]
        for name, values in given:
            if values is None or values.null_count == len(values):
                continue
            line = _bulk(values, _text(name))
            if values.null_count:
                arguments = _sum(arguments, pc.multiply(pc.cast(values.is_valid(), pa.int64()), 2))
                line = line.fill_null(b"")
            else:
                arguments = _sum(arguments, 2)
            parts.append(line)
        if self._content_type is not None:
            parts.append(pa.scalar(_text(envelope.CONTENT_TYPE) + _text(self._content_type), _BINARY))
            arguments = _sum(arguments, 2)
        if names.fields is not None:
            line, counts = self._fields({name: values for name, values in given if values is not None})
            parts.append(line)
            arguments = _sum(arguments, counts)
        return Packed(_join(*parts) if len(parts) > 1 else parts[0], arguments, streams)

    # --- the parts of an entry ----------------------------------------------------------------------

    def _data(self) -> Array | None:
        if self._encoder is not None:
            data = self._encoder.encode(self._batch, self._failure)
            column = "payload"
        elif self._columns.data is not None:
            column = self._columns.data
            data = self._batch.column(column).cast(_BINARY)
        else:
            return None
        if data.null_count and self._columns.fields is None:
            raise self._failure(_first(data.is_null()), column, "is null: an entry needs a payload")
        longest = pc.max(pc.binary_length(data)).as_py() or 0
        if longest > self._max_bytes:
            row = _first(pc.greater(pc.binary_length(data), self._max_bytes))
            size = len(data[row].as_py())
            raise PayloadTooLarge(
                self._where(row, column) + f" has {size:,} bytes, more than maxPayloadBytes={self._max_bytes:,}"
            )
        return data

    def _streams(self) -> Array:
        name = str(self._columns.stream)
        column = self._batch.column(name)
        if column.null_count:
            raise self._failure(_first(column.is_null()), name, "is null: every row needs a stream")
        return column

    def _name(self, name: str | None) -> Array | None:
        if name is None:
            return None
        column = self._batch.column(name)
        lengths = pc.utf8_length(column)
        for is_wrong, why in (
            (pc.equal(lengths, 0), "is empty: use a non-empty string, or null for none"),
            (pc.greater(lengths, MAX_NAME), f"has more than {MAX_NAME} characters"),
        ):
            if pc.any(is_wrong).as_py():
                raise self._failure(_first(is_wrong), name, why)
        return column.cast(_BINARY)

    def _headers(self) -> Array | None:
        name = self._columns.headers
        if name is None:
            return None
        encode = msgspec.json.encode
        made: list[bytes | None] = []
        for row, pairs in enumerate(self._batch.column(name).to_pylist()):
            if pairs and any(value is None for _, value in pairs):
                raise self._failure(row, name, "contains a null value")
            made.append(encode(dict(pairs)) if pairs else None)
        return pa.array(made, _BINARY)

    def _fields(self, given: dict[str, Array]) -> tuple[Array, int | Array]:
        # A column wins over the field of the same name, so that all columns of a stream are written as they are read.
        name = str(self._columns.fields)
        if envelope.DATA in given and not given[envelope.DATA].null_count and _is_empty(self._batch.column(name)):
            return _NOTHING, 0
        taken = {field: values.is_valid().to_pylist() for field, values in given.items()}
        lines: list[bytes] = []
        counts: list[int] = []
        for row, pairs in enumerate(self._batch.column(name).to_pylist()):
            wanted = [pair for pair in pairs or () if pair[0] not in taken or not taken[pair[0]][row]]
            if self._content_type is not None:
                wanted = [pair for pair in wanted if pair[0] != envelope.CONTENT_TYPE]
            if any(value is None for _, value in wanted):
                raise self._failure(row, name, "contains a null value")
            if not wanted and not ("data" in taken and taken["data"][row]):
                raise self._failure(row, name, "is empty and there is no payload: an entry needs at least one field")
            if len(wanted) > MAX_FIELDS:
                raise self._failure(row, name, f"has more than {MAX_FIELDS} fields")
            lines.append(b"".join([_text(envelope.field_bytes(field)) + _text(value) for field, value in wanted]))
            counts.append(2 * len(wanted))
        return pa.array(lines, _BINARY), pa.array(counts, pa.int64())

    # --- errors -------------------------------------------------------------------------------------

    def _failure(self, row: int, column: str, why: str) -> EncodeError:
        return EncodeError(f"{self._where(row, column)} {why}")

    def _where(self, row: int, column: str) -> str:
        known = {"key": self._columns.key, "message id": self._columns.message_id}
        known_values = [f"{what} {self._batch.column(name)[row].as_py()!r:.80}" for what, name in known.items() if name]
        shown = f" ({', '.join(known_values)})" if known_values else ""
        return f"row {self._row + row + 1:,} of the partition{shown}: column {column!r}"


def counted(packed: Packed) -> Packed:
    """Put the number of its field arguments before each entry, as the script wants it."""
    if isinstance(packed.arguments, int):
        head = pa.scalar(_text(str(packed.arguments)), _BINARY)
        return Packed(_join(head, packed.lines), packed.arguments + 1, packed.streams)
    head = _bulk(packed.arguments.cast(pa.string()).cast(_BINARY))
    return Packed(_join(head, packed.lines), pc.add(packed.arguments, 1), packed.streams)


def commands(packed: Packed, key: str) -> Packed:
    """Make an XADD of each entry."""
    rest = b"\r\n" + _text("XADD") + _text(key) + _text("*")
    if isinstance(packed.arguments, int):
        head = pa.scalar(b"*%d" % (packed.arguments + 3) + rest, _BINARY)
    else:
        number = pc.add(packed.arguments, 3).cast(pa.string()).cast(_BINARY)
        head = _join(pa.scalar(b"*", _BINARY), number, pa.scalar(rest, _BINARY))
    return Packed(_join(head, packed.lines), 0, None)


def _bulk(values: Array, before: bytes = b"") -> Array:
    # A value as an argument, `before` it the argument that names it; null stays null.
    lengths = pc.binary_length(values).cast(pa.string()).cast(_BINARY)
    return _join(pa.scalar(before + b"$", _BINARY), lengths, _END, values, _END)


def _join(*parts: Array) -> Array:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def _sum(one: int | Array, other: int | Array) -> int | Array:
    return one + other if isinstance(one, int) and isinstance(other, int) else pc.add(one, other)


def _is_empty(maps: Array) -> bool:
    offsets = maps.offsets
    return bool(offsets[0] == offsets[-1])


def _first(is_wrong: Array) -> int:
    return int(pc.index(is_wrong, True).as_py())


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
                    raise failure(number, name, "is not UTF-8 text") from None
                except KeyError as error:
                    raise failure(number, name, f"has a duplicate key: {error}") from None
            raise
        return values
