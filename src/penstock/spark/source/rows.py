"""Entries as the server sends them become Arrow batches; plain Python, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock import dead_letter_record, envelope, ids
from penstock.errors import DecodeError, NotAuthentic
from penstock.policy import Reason
from penstock.protection import payload_of
from penstock.spark.payload.decoding import MalformedPayload, PayloadFormat, decode
from penstock.spark.runtime.link import Link
from penstock.sync.redis.client import StreamClient

NOT_AUTHENTIC = Reason.NOT_AUTHENTIC.value  # how the reason of such a row begins
Entry: TypeAlias = tuple[bytes, list[bytes]]  # id; field, value, field, value, ...
Page: TypeAlias = tuple[str, list[Entry]]  # some entries of one stream
_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_DASH, _ZERO = ord("-"), ord("0")
_MS_DIGITS = 13  # until the year 2286
OFFSET_BITS = 20  # of a whole number that are for the second number of an id: a million entries a millisecond
LAST_MS = 253_402_300_799_999  # of the year 9999: Spark shows no later time, and an id may be any number


class RowBuilder:
    """Builds the wanted columns, and no others. Pickled with the task."""

    def __init__(
        self,
        schema: pa.Schema,
        payload: PayloadFormat | None = None,
        payload_field: str = "data",
        payload_column: str | None = None,
        names: Mapping[str, str] | None = None,
        protected_by: Link | None = None,
    ) -> None:
        self._schema, self._payload, self._payload_field = schema, payload, payload_field.encode()
        self._payload_column, self._names = payload_column, dead_letter_record.FIELDS if names is None else names
        self._protected_by = protected_by

    def build(self, pages: Sequence[Page]) -> pa.RecordBatch:
        """Return the entries of some pages as one batch."""
        refused: dict[int, str] = {}
        if self._protected_by is not None:
            pages, refused = opened_pages(pages, self._protected_by.client())
        rows = _Rows(pages, self._payload_field, self._names)
        made: dict[str, pa.Array] = {}
        kept: pa.Array | None = None
        if self._payload is not None:
            made, kept = self._decode(rows, self._payload, refused)
        arrays = []
        for field in self._schema:
            array = made.get(field.name)
            if array is None:
                array = rows.column(field.name, field.type)
                array = array if kept is None else array.take(kept)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _decode(
        self, rows: _Rows, payload: PayloadFormat, refused: Mapping[int, str]
    ) -> tuple[dict[str, pa.Array], pa.Array | None]:
        try:
            decoded = decode(rows.payloads, payload, refused)
        except MalformedPayload as error:
            stream, entry_id = rows.name(error.row)
            raise DecodeError(f"entry {entry_id} of stream {stream!r}: {error.reason} (mode FAILFAST)") from error
        columns = dict(zip(payload.schema.names, decoded.columns, strict=True))
        if self._payload_column is not None:
            whole = pa.StructArray.from_arrays(decoded.columns, fields=list(payload.schema)) if columns else None
            columns = {self._payload_column: whole} if whole is not None else {}
        if payload.corrupt_column is not None:
            columns[payload.corrupt_column] = decoded.corrupt
        if payload.reason_column is not None:
            columns[payload.reason_column] = decoded.reason
        return columns, decoded.kept


def opened_pages(pages: Sequence[Page], client: StreamClient) -> tuple[list[Page], dict[int, str]]:
    """Return the pages with opened payloads, without those that are not authentic, and why these are not by row."""
    opened, field = list[Page](), envelope.DATA.encode()
    refused: dict[int, str] = {}
    rows = itertools.count()
    for stream, entries in pages:
        made: list[Entry] = []
        key = client.keys(stream).stream
        for (entry_id, fields), row in zip(entries, rows, strict=False):
            try:
                payload = payload_of(envelope.as_mapping(fields), key, client.protection)
            except NotAuthentic as error:
                payload, refused[row] = None, f"{NOT_AUTHENTIC}: {error}"
            rest = [part for pair in zip(fields[::2], fields[1::2], strict=True) if pair[0] != field for part in pair]
            made.append((entry_id, rest if payload is None else [field, payload, *rest]))
        opened.append((stream, made))
    return opened, refused


class _Rows:
    """The entries of some pages, column by column."""

    def __init__(self, pages: Sequence[Page], payload_field: bytes, names: Mapping[str, str]) -> None:
        self._pages, self._payload_field, self._names = pages, payload_field, names
        self._entries: list[Entry] = pages[0][1] if len(pages) == 1 else [e for _, page in pages for e in page]
        self._times: tuple[_Numbers, _Numbers] | None = None

    @property
    def payloads(self) -> list[bytes | None]:
        """The payload of each entry, None where it has none."""
        return self._values(self._payload_field)

    def name(self, row: int) -> tuple[str, str]:
        """Return stream and id of a row."""
        streams = [stream for stream, page in self._pages for _ in page]
        return streams[row], self._entries[row][0].decode()

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return one column."""
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, kind)
        field = self._names.get(name, name)
        if kind == pa.int64():
            return pa.array([envelope.number(value) for value in self._values(field.encode())], kind)
        if pa.types.is_timestamp(kind):
            times = [envelope.number(value) for value in self._values(field.encode())]
            return pa.array([None if ms is None or ms > LAST_MS else ms * 1000 for ms in times], pa.int64()).cast(kind)
        return _texts(self._values(field.encode()), kind)

    def _values(self, field: bytes) -> list[bytes | None]:
        # `data` is the first field of nearly every entry.
        return [fields[1] if fields and fields[0] == field else _find(fields, field) for _, fields in self._entries]

    def stream(self, kind: pa.DataType) -> pa.Array:
        """Return the names of the streams."""
        runs = [pa.repeat(pa.scalar(stream, kind), len(page)) for stream, page in self._pages]
        return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)

    def id(self, kind: pa.DataType) -> pa.Array:
        """Return the ids as text."""
        return pa.array([entry[0] for entry in self._entries], pa.binary()).cast(kind)

    def ms(self, kind: pa.DataType) -> pa.Array:
        """Return the first numbers of the ids."""
        return pa.array(self._numbers()[0], kind)

    def seq(self, kind: pa.DataType) -> pa.Array:
        """Return the second numbers of the ids; one beyond a signed 64-bit number wraps."""
        return pa.array(self._numbers()[1], kind)

    def timestamp(self, kind: pa.DataType) -> pa.Array:
        """Return when the server added the entries."""
        return times(self._numbers()[0], kind)

    def _numbers(self) -> tuple[_Numbers, _Numbers]:
        if self._times is None:
            self._times = _id_numbers([entry[0] for entry in self._entries])
        return self._times

    def headers(self, kind: pa.DataType) -> pa.Array:
        """Return the headers of the entries as maps; an entry without any has an empty one."""
        values = self._values(b"headers")
        if not any(values):
            return pa.repeat(pa.scalar([], kind), len(values))
        pairs = [list(envelope.decode_headers(value).items()) for value in values]
        if pa.types.is_list(kind):  # as Kafka has them
            return pa.array([[{"key": name, "value": text.encode()} for name, text in each] for each in pairs], kind)
        return pa.array(pairs, kind)

    def value(self, kind: pa.DataType) -> pa.Array:
        """Return the payloads."""
        return _texts(self.payloads, kind)

    def partition(self, kind: pa.DataType) -> pa.Array:
        """Return the partition of Kafka's that a stream is: its only one."""
        return pa.repeat(pa.scalar(0, kind), len(self._entries))

    def offset(self, kind: pa.DataType) -> pa.Array:
        """Return the ids as whole numbers in the same order; null for one that does not fit, chosen by its producer."""
        ms, seq = self._numbers()
        is_beyond = (ms < 0) | (ms >= 1 << 63 - OFFSET_BITS) | (seq < 0) | (seq >= 1 << OFFSET_BITS)
        return pa.array((ms << OFFSET_BITS) + seq, kind, mask=is_beyond if is_beyond.any() else None)

    def timestamp_type(self, kind: pa.DataType) -> pa.Array:
        """Return whose clock the time is of: the server's (LogAppendTime)."""
        return pa.repeat(pa.scalar(1, kind), len(self._entries))

    def fields(self, kind: pa.DataType) -> pa.Array:
        """Return all fields of the entries as maps; of fields with one name the last one counts, as for consumers."""
        flat = [fields for _, fields in self._entries]
        if any(len(fields) > 2 and len({*fields[::2]}) * 2 != len(fields) for fields in flat):
            flat = [list(itertools.chain.from_iterable(dict(zip(f[::2], f[1::2], strict=True)).items())) for f in flat]
        lengths = np.fromiter((len(fields) // 2 for fields in flat), np.int32, len(flat))
        starts = np.zeros(len(flat) + 1, np.int32)
        np.cumsum(lengths, out=starts[1:])
        names = _names([name for fields in flat for name in fields[::2]])
        values = _texts([value for fields in flat for value in fields[1::2]], kind.item_type)
        return pa.MapArray.from_arrays(pa.array(starts, pa.int32()), names, values).cast(kind)


_SPECIAL: dict[str, Callable[[_Rows, pa.DataType], pa.Array]] = {
    "stream": _Rows.stream,
    "id": _Rows.id,
    "ms": _Rows.ms,
    "seq": _Rows.seq,
    "timestamp": _Rows.timestamp,
    "headers": _Rows.headers,
    "fields": _Rows.fields,
    "value": _Rows.value,
    "topic": _Rows.stream,
    "partition": _Rows.partition,
    "offset": _Rows.offset,
    "timestampType": _Rows.timestamp_type,
}


def _find(fields: list[bytes], wanted: bytes) -> bytes | None:
    for index in range(len(fields) - 2, -1, -2):
        if fields[index] == wanted:
            return fields[index + 1]
    return None


def _texts(values: Iterable[bytes | None], kind: pa.DataType) -> pa.Array:
    made = pa.array(values, pa.binary())
    if kind == pa.binary():
        return made
    try:
        return made.cast(kind)
    except pa.ArrowInvalid:  # not all of it is UTF-8
        return pa.array([None if value is None else value.decode(errors="replace") for value in made.to_pylist()], kind)


def _names(values: list[bytes]) -> pa.Array:
    # Nearly all fields have the expected name and type; only the others are converted.
    called = {raw: name for raw in {*values} if (name := envelope.field_name(raw).encode()) != raw}
    found = [called.get(raw, raw) for raw in values] if called else values
    return pa.array(found, pa.binary()).cast(pa.string())


def times(ms: _Numbers, kind: pa.DataType) -> pa.Array:
    """Return the first numbers of ids as times; null for one beyond the calendar, chosen by its producer."""
    is_beyond = (ms < 0) | (ms > LAST_MS)
    return pa.array(ms * 1000, pa.int64(), mask=is_beyond if is_beyond.any() else None).cast(kind)


def _id_numbers(entry_ids: list[bytes]) -> tuple[_Numbers, _Numbers]:
    # The digits of all ids side by side: 0.06 us an id, where int() takes 0.8.
    digits = np.array(entry_ids, "S")
    width = digits.dtype.itemsize
    matrix = digits.view(np.uint8).reshape(len(entry_ids), width)
    if width < _MS_DIGITS + 2 or width > _MS_DIGITS + 19 or not bool((matrix[:, _MS_DIGITS] == _DASH).all()):
        pairs = [ids.parse(entry_id.decode()) for entry_id in entry_ids]
        ms, seq = zip(*pairs, strict=True) if pairs else ((), ())
        return np.array(ms, np.uint64).astype(np.int64), np.array(seq, np.uint64).astype(np.int64)
    milliseconds = np.zeros(len(entry_ids), np.int64)
    for column in range(_MS_DIGITS):
        milliseconds = milliseconds * 10 + (matrix[:, column] - _ZERO)
    sequence = np.zeros(len(entry_ids), np.int64)
    for column in range(_MS_DIGITS + 1, width):
        digit = matrix[:, column]
        sequence = np.where(digit == 0, sequence, sequence * 10 + (digit - np.uint8(_ZERO)))
    return milliseconds, sequence
