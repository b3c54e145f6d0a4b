"""Streams: through the sink of the format `redis_streams`, under a name and a number that a repetition has as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import EncodeError, PayloadTooLarge, PenstockError
from penstock.spark.option_values import Options
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.origin import Entry, Origin, visible
from penstock.spark.pipeline.sinks import RedisStreams
from penstock.spark.pipeline.source import Source
from penstock.spark.pipeline.writing.packing import PACKED_DDL, PackTask
from penstock.spark.pipeline.writing.refusal import Refusal, Refusals, is_of_spark, told_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_LINK = ("redis.", "passwordfile", "passwordenv")


class RedisStreamsWriter:
    """Writes batches as entries. Rows become visible one after the other, so a repetition must bring the same."""

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
        """Yield what would keep rows of this schema from being written; write nothing."""
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
            yield f"stream {options.stream!r} is a {kind} in Redis, and no stream"

    def is_refusal(self, error: BaseException) -> bool:
        """Tell whether a write may have failed for a value in a row."""
        return is_of_spark(error) and any(
            name in str(error) for name in (EncodeError.__name__, PayloadTooLarge.__name__)
        )

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that cannot be entries, and write nothing."""
        from penstock.spark.sink.options import SinkOptions

        plain = visible(rows)
        given = Options({**self._options, "writeId": "check"})
        options = SinkOptions.from_options(given, plain.schema, is_streaming=False)
        told = rows.select(*told_of(rows, origin), *plain.columns)
        for stream, entry_id, shown, column, why in told.mapInArrow(PackTask(options), PACKED_DDL).collect():
            yield Refusal(Entry.of(stream, entry_id), column, why, shown)

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch; rows that are there are skipped one by one."""
        writer = rows.write.format("redis_streams").mode("append").options(**self._options)
        writer.option("writeId", f"{key.query}.{self._sink.name}").option("batchId", str(key.number)).save()
        mark("redis_streams written")
        return True
