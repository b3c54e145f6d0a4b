"""A checksum of rows that depends on their values and their order, and not on how they are cut into batches."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa


class RowDigest:
    """Takes batches in; batches of any size give the same sum for the same rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [_Column(field.type) for field in schema]
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows in."""
        self.rows += batch.num_rows
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.add(array)

    def sum(self) -> str:
        """Return the checksum of all rows so far."""
        whole = hashlib.sha256(str(self.rows).encode())
        for column in self._columns:
            column.put(whole)
        return whole.hexdigest()


class _Column:
    """The sums of one column: of which values are there, of their lengths, and of what they are."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._valid, self._lengths, self._values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._inner = [_Column(kind.key_type), _Column(kind.item_type)] if pa.types.is_map(kind) else []

    def add(self, array: Any) -> None:
        valid = np.asarray(array.is_valid().cast(pa.uint8()))
        self._valid.update(valid.tobytes())
        if array.null_count:
            array = array.drop_null()  # what lies under a null is anything
        if pa.types.is_map(self._kind):
            offsets = np.asarray(array.offsets)
            self._lengths.update(np.diff(offsets).astype("<i4").tobytes())
            start, stop = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
            self._inner[0].add(array.keys.slice(start, stop - start))
            self._inner[1].add(array.items.slice(start, stop - start))
        elif pa.types.is_binary(self._kind) or pa.types.is_string(self._kind):
            self._text(array)
        else:
            self._values.update(np.asarray(array.cast(pa.int64())).astype("<i8").tobytes())

    def _text(self, array: Any) -> None:
        if not len(array):
            return
        _, offsets, values = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        self._lengths.update(np.diff(ends).astype("<i4").tobytes())
        if values is not None:
            self._values.update(memoryview(values)[int(ends[0]) : int(ends[-1])])

    def put(self, whole: Any) -> None:
        """Put the sums of the column into the sum of all."""
        for part in (self._valid, self._lengths, self._values):
            whole.update(part.digest())
        for inner in self._inner:
            inner.put(whole)
