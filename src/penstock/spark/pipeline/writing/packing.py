"""Tries which rows can be packed as entries of a stream; on the executors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import EncodeError, PayloadTooLarge
from penstock.spark.carried import Carried
from penstock.spark.sink.entries import Packer

if TYPE_CHECKING:
    from penstock.spark.sink.options import SinkOptions

PACKED_DDL = "stream string, id string, shown string, column string, why string"
_TEXT = pa.string()
_SCHEMA = pa.schema([(name, _TEXT) for name in ("stream", "id", "shown", "column", "why")])
_TOLD = 3  # columns before those of the row
_WHERE = re.compile(r"^row .*?: column '(.*?)' (.*)$", re.DOTALL)


@dataclass(frozen=True)
class PackTask(Carried):
    """Called by Spark with Arrow batches; yields what tells of the rows that cannot be packed, and why."""

    options: SinkOptions

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield a line for each."""
        for batch in batches:
            if self._why_not(batch) is None:
                continue
            found = [self._line(batch.slice(row, 1)) for row in range(batch.num_rows)]
            yield pa.RecordBatch.from_pylist([line for line in found if line is not None], _SCHEMA)

    def _line(self, row: Any) -> dict[str, Any] | None:
        why = self._why_not(row)
        if why is None:
            return None
        found = _WHERE.match(why)
        column, text = (found[1], found[2]) if found else (None, why)
        told = [row.column(number)[0].as_py() for number in range(_TOLD)]
        return {**dict(zip(_SCHEMA.names, told, strict=False)), "column": column, "why": text}

    def _why_not(self, batch: Any) -> str | None:
        options = self.options
        packer = Packer(
            options.columns, options.form, options.content_type, options.max_bytes, is_by_column=options.stream is None
        )
        rest = batch.select(batch.schema.names[_TOLD:])
        try:
            for _ in packer.pack(rest, is_bare=packer.is_plain):
                pass
        except (EncodeError, PayloadTooLarge) as error:
            return str(error)
        return None
