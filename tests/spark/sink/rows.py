"""Rows for the sink without Spark: options, batches and a write as a task makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.runtime.option_values import Options
from penstock.spark.sink.identity import Identity
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writer import Written, write_partition

QUERY = "9f7c"


def batch(rows: Iterable[Any], **more: Any) -> pa.RecordBatch:
    return pa.record_batch({"data": pa.array([str(row).encode() for row in rows], pa.binary()), **more})


def options(url: str, made: pa.RecordBatch | pa.Schema, *, is_streaming: bool = True, **given: Any) -> SinkOptions:
    schema = made if isinstance(made, pa.Schema) else made.schema
    texts = {"url": url, **{name.replace("redis_", "redis."): str(value) for name, value in given.items()}}
    return SinkOptions.from_options(Options(texts), from_arrow_schema(schema), is_streaming=is_streaming)


def identity(batch_id: int = 0, partition: int = 0, run: str | None = "run-1", query: str = QUERY) -> Identity:
    return Identity(query, run, batch_id, partition)


def write(chosen: SinkOptions, batches: Iterable[Any], who: Identity | None = None) -> Written:
    return write_partition(chosen, who or identity(), iter(batches))


def failing_after(batches: Iterable[Any], error: Exception) -> Iterator[Any]:
    yield from batches
    raise error


def payloads(raw: Any, stream: str = "s") -> list[str]:
    return [fields[b"data"].decode() for _, fields in raw.xrange(stream)]
