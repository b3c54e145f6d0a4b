"""Streams, written by the Spark sink `redis_streams` under a write id and batch number that a repetition shares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import EncodeError, PayloadTooLarge, PenstockError
from penstock.spark.lake.files import FailPoint
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.rejected_rows import (
    Origin,
    Refusal,
    Refusals,
    SourceEntry,
    is_of_spark,
    row_summary,
    visible,
    visible_schema,
)
from penstock.spark.pipeline.sink_options import RedisStreams
from penstock.spark.pipeline.spec import Source
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.option_values import Options
from penstock.spark.sink.entries import Packer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.spark.sink.options import SinkOptions

_PACKED_DDL = "stream string, id string, shown string, column string, why string"
_TEXT = pa.string()
_SCHEMA = pa.schema([(name, _TEXT) for name in ("stream", "id", "shown", "column", "why")])
_SUMMARY_COLUMNS = 3  # columns before those of the row
_WHERE = re.compile(r"^row .*?: column '(.*?)' (.*)$", re.DOTALL)
_LINK = ("redis.", "passwordfile", "passwordenv")


class RedisStreamsWriter:
    """Writes batches as entries. Rows become visible one by one, so a repetition must have the same rows."""

    is_atomic = False

    def __init__(self, sink: RedisStreams, source: Source) -> None:
        self._sink = sink
        inherited: dict[str, str] = {}
        if sink.url is None:
            inherited = {name: value for name, value in source.options.items() if name.lower().startswith(_LINK)}
        self._options = {**inherited, **sink.options, "url": sink.url or source.url}
        if sink.stream is not None:
            self._options["stream"] = sink.stream

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        schema = visible_schema(schema)
        from penstock.spark.sink.options import SinkOptions

        try:
            options = SinkOptions.from_options(
                Options({**self._options, "writeId": "check"}), schema, is_streaming=False
            )
            client = options.link.client()
            key = client.keys(options.stream or "penstock").stream
            kind = client.call(key, "TYPE", key)
        except PenstockError as error:
            yield str(error)
            return
        kind = kind.decode() if isinstance(kind, bytes) else str(kind)
        if options.stream is not None and kind not in ("stream", "none"):
            yield f"key {options.stream!r} in Redis is a {kind}, not a stream"

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value in a row."""
        return is_of_spark(error) and any(
            name in str(error) for name in (EncodeError.__name__, PayloadTooLarge.__name__)
        )

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that cannot become entries, and write nothing."""
        from penstock.spark.sink.options import SinkOptions

        plain = visible(rows)
        given = Options({**self._options, "writeId": "check"})
        options = SinkOptions.from_options(given, plain.schema, is_streaming=False)
        described = rows.select(*row_summary(rows, origin), *plain.columns)
        for stream, entry_id, shown, column, why in described.mapInArrow(PackTask(options), _PACKED_DDL).collect():
            yield Refusal(SourceEntry.of(stream, entry_id), column, why, shown)

    def has(self, key: BatchKey) -> bool:  # noqa: ARG002 - there is no record
        """Return True: some of its rows may be there."""
        return True

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch; rows that are already there are skipped one by one."""
        rows = visible(rows)
        writer = rows.write.format("redis_streams").mode("append").options(**self._options)
        writer.option("writeId", f"{key.query}.{self._sink.name}").option("batchId", str(key.number)).save()
        mark("redis_streams written")
        return True


@dataclass(frozen=True)
class PackTask(Shipped):
    """Finds rows that cannot be packed as entries; called by Spark with Arrow batches."""

    options: SinkOptions

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield one row for each row that cannot be packed."""
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
        summary = [row.column(number)[0].as_py() for number in range(_SUMMARY_COLUMNS)]
        return {**dict(zip(_SCHEMA.names, summary, strict=False)), "column": column, "why": text}

    def _why_not(self, batch: Any) -> str | None:
        options = self.options
        packer = Packer(
            options.columns, options.form, options.content_type, options.max_bytes, is_by_column=options.stream is None
        )
        rest = batch.select(batch.schema.names[_SUMMARY_COLUMNS:])
        try:
            for _ in packer.pack(rest, is_bare=packer.is_plain):
                pass
        except (EncodeError, PayloadTooLarge) as error:
            return str(error)
        return None
