"""The columns of the files. The payload is kept once: `fields` holds the fields of an entry other than `data`."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import ids
from penstock.spark.source.rows import times

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
_TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("stream", _TEXT),
        ("id", _TEXT),
        ("ms", pa.int64()),
        ("seq", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
        ("key", _TEXT),
        ("headers", pa.map_(_TEXT, _TEXT)),
        ("message_id", _TEXT),
        ("fields", pa.map_(_TEXT, pa.binary())),
    ]
)
# As Spark writes it.
DDL = (
    "stream string, id string, ms bigint, seq bigint, timestamp timestamp, data binary, key string, "
    "headers map<string,string>, message_id string, fields map<string,binary>"
)
# What is read of an entry: the rest is in these.
READ_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in ("timestamp", "data")])
WHOLE_FIELDS = "map_concat(if(data is null, cast(map() as map<string,binary>), map('data', data)), fields)"


def stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the source as they are kept."""
    data, rest = _apart(batch.column("fields"))
    made = {
        "timestamp": times(batch.column("ms").cast(pa.int64()).to_numpy(), pa.timestamp("us", tz="UTC")),
        "data": data,
        "fields": rest,
    }
    arrays = [_as(made[f.name] if f.name in made else batch.column(f.name), f.type) for f in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _as(array: Any, kind: pa.DataType) -> Any:
    return array if array.type == kind else array.cast(kind)


def _apart(fields: Any) -> tuple[Any, Any]:
    # The entries of all maps lie side by side: those called `data` are taken out, column-wise.
    offsets = np.asarray(fields.offsets)
    start, stop = int(offsets[0]), int(offsets[-1])
    names, values = fields.keys.slice(start, stop - start), fields.items.slice(start, stop - start)
    is_data = np.asarray(pc.equal(names, "data").cast(pa.uint8())).astype(bool)
    row_of = np.repeat(np.arange(len(fields)), np.diff(offsets))
    place = np.full(len(fields), -1, np.int64)
    place[row_of[is_data]] = np.flatnonzero(is_data)
    data = values.take(pa.array(place, pa.int64(), mask=place < 0))
    kept = pa.array(~is_data)
    before = np.concatenate([[0], np.cumsum(~is_data)])
    ends = pa.array(before[offsets - start].astype(np.int32))
    return data.cast(pa.binary()), pa.MapArray.from_arrays(ends, names.filter(kept), values.filter(kept))


def whole_fields(batch: pa.RecordBatch) -> list[dict[str, bytes]]:
    """Return all fields of each row, `data` among them."""
    rest = batch.column("fields").to_pylist()
    data = batch.column("data").to_pylist()
    return [{**({} if d is None else {"data": d}), **dict(pairs or ())} for d, pairs in zip(data, rest, strict=True)]


def is_behind(ms: Numbers, seq: Numbers, entry_id: str) -> Mask:
    """Return for each row whether its id is greater; both numbers are unsigned, as the server's are."""
    at_ms, at_seq = (np.uint64(number) for number in ids.parse(entry_id))
    found: Mask = (ms > at_ms) | ((ms == at_ms) & (seq > at_seq))
    return found


def is_between(batch: pa.RecordBatch, after: str, upto: str) -> Mask:
    """Return for each row whether its id is behind one id, and not behind another."""
    ms, seq = unsigned(batch.column("ms")), unsigned(batch.column("seq"))
    return is_behind(ms, seq, after) & ~is_behind(ms, seq, upto)


def between(batch: pa.RecordBatch, after: str, upto: str) -> pa.RecordBatch:
    """Return the rows behind one id, up to and with another."""
    mask = is_between(batch, after, upto)
    return batch if bool(mask.all()) else batch.filter(pa.array(mask))


def unsigned(column: Any) -> Numbers:
    """Return a column of signed 64-bit numbers as those that it was made of: beyond the half they have wrapped."""
    found: Numbers = column.to_numpy().view(np.uint64)
    return found
