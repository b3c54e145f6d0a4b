"""The pending list of a consumer group as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.errors import ConfigurationError, GroupLost
from penstock.spark.reading.rows import Entry, RowBuilder
from penstock.sync.redis.client import StreamClient

_PAGE = 10_000


def pending_rows(
    client: StreamClient, streams: Sequence[str], group: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Return what is pending in the group, page by page."""
    # Written as entries with fields, so that the columns are built by the one builder there is.
    builder = RowBuilder(schema, names=_FIELDS)
    for stream in streams:
        key, start = client.keys(stream).stream, "-"
        while True:
            try:
                rows = client.call(key, "XPENDING", key, group, start, "+", _PAGE)
            except GroupLost as error:
                raise ConfigurationError(f"stream {stream!r} has no consumer group {group!r}: {error}") from error
            if rows:
                yield builder.build([(stream, [_as_entry(row, group) for row in rows])])
            if len(rows) < _PAGE:
                break
            start = "(" + rows[-1][0].decode()


_FIELDS = {"group": "group", "consumer": "consumer", "idle_ms": "idle_ms", "deliveries": "deliveries"}


def _as_entry(row: tuple[bytes, bytes, int, int], group: str) -> Entry:
    entry_id, consumer, idle_ms, deliveries = row
    fields = [b"group", group.encode(), b"consumer", consumer, b"idle_ms", b"%d" % idle_ms, b"deliveries"]
    return entry_id, [*fields, b"%d" % deliveries]
