"""The writers that Spark calls: on the driver once per write or micro-batch, on the executors once per partition.

How a write becomes exactly-once:

* A row has a position: query (or `writeId`), batch, partition, target stream, and its number among the rows that the
  partition has for that stream. A partition that is written again brings the same rows in the same order.
* The script `spark/write` adds rows and notes the position after them in one step, in a hash next to the stream. Rows
  at or before the noted position are skipped, so a chunk, a task, a batch may be repeated, also with another
  `batchSize`, and two attempts of a task may write at the same time.
* With the position goes a checksum of all rows up to it. A repetition that brings other rows, as a shuffle can, is
  refused (ReplayDiffers) instead of losing some rows and doubling others.
* Rows that would leave a gap are refused (WriteLost): the server has lost what it had confirmed.
* Each task registers its run before it writes; an older run of the query is refused (QueryFenced). See identity.py.

The driver commits nothing: what tasks have written is visible at once, as with Spark's Kafka sink.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError
from penstock.redis.scripts import MAX_BYTES
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.option_values import Options
from penstock.spark.sink.entries import Packed, Packer
from penstock.spark.sink.identity import Identity, register
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.protocol import Chunk, IdempotentScript, PlainXadd, WaitingRows, WriteProtocol
from penstock.spark.sink.sender import Sender
from penstock.sync.redis.client import StreamClient

logger = logging.getLogger("penstock.spark")

_MOST_CHUNKS_WAITING = 50  # over all target streams


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote: rows by stream, those that an earlier attempt had written, and what `maxLen` pushed out."""

    partition: int
    added: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


def checked_options(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, is_streaming: bool
) -> SinkOptions:
    """Return how a DataFrame is written; raise ConfigurationError for what cannot be written so."""
    if overwrite:
        raise ConfigurationError(
            "a stream is append-only: use .mode('append') for a batch write and outputMode('append') or "
            "('update') for a streaming query; to start over, delete the stream first"
        )
    return SinkOptions.from_options(Options(options), schema, is_streaming=is_streaming)


class PartitionWriter(Shipped):
    """What tasks do, for a DataFrame and for the micro-batches of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition."""
        return write_partition(self._options, Identity.of_task(self._options), iterator)


class BatchWriter(PartitionWriter, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was written."""
        logger.info("%s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what stays in the streams although the write failed."""
        logger.warning("write failed; entries already written stay: %s", _summary(messages))


class StreamWriter(PartitionWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was written."""
        logger.info("batch %d: %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what stays in the streams although the batch failed."""
        logger.warning("batch %d failed; entries already written stay: %s", batchId, _summary(messages))


def write_partition(options: SinkOptions, identity: Identity, batches: Iterator[Any]) -> Written:
    """Write the rows of a partition, and return when all are confirmed."""
    freeze_gc()
    client = options.link.client()
    packer = Packer(
        options.columns, options.form, options.content_type, options.max_bytes, is_by_column=options.stream is None
    )
    protocol = _protocol(client, identity, options, packer)
    sender = Sender(client, protocol, options)
    dispatch = _Dispatch(sender, protocol, options)
    try:
        for batch in batches:
            for packed in packer.pack(batch, is_bare=protocol.is_bare):
                dispatch.take(packed)
        dispatch.flush()
        sender.close()
    finally:
        sender.abort()  # after close() there is nothing to abort
    tally = sender.tally
    return Written(identity.partition, tally.added, tally.repeated, tally.dropped)


def _protocol(client: StreamClient, identity: Identity, options: SinkOptions, packer: Packer) -> WriteProtocol:
    if options.semantics == "at-least-once" and not options.max_len:
        return PlainXadd(client.keys)
    # maxLen needs the script in any case: only the server knows how much room there is.
    return IdempotentScript(
        client.keys, identity, register(client, identity, options), options, is_bare=packer.is_plain
    )


class _Dispatch:
    """Sorts rows by target stream and sends them on in chunks."""

    def __init__(self, sender: Sender, protocol: WriteProtocol, options: SinkOptions) -> None:
        self._sender, self._protocol, self._options = sender, protocol, options
        self._backlogs: dict[str, WaitingRows] = {}

    def take(self, packed: Packed) -> None:
        """Take rows in, and send what is enough for a chunk."""
        for stream, part in self._by_stream(packed):
            backlog = self._backlogs.get(stream)
            if backlog is None:
                backlog = self._backlogs[stream] = WaitingRows(stream)
            backlog.add(self._protocol.wrap(part, stream))
            self._send(backlog, is_last=False)
        if sum(backlog.rows for backlog in self._backlogs.values()) > _MOST_CHUNKS_WAITING * self._options.batch_size:
            self.flush()

    def flush(self) -> None:
        """Send what is left."""
        for backlog in self._backlogs.values():
            self._send(backlog, is_last=True)

    def _by_stream(self, packed: Packed) -> Iterator[tuple[str, Packed]]:
        if packed.streams is None:
            assert self._options.stream is not None
            yield self._options.stream, packed
            return
        encoded = packed.streams.dictionary_encode()
        for number, stream in enumerate(encoded.dictionary.to_pylist()):
            rows = pc.indices_nonzero(pc.equal(encoded.indices, pa.scalar(number, pa.int32())))
            yield stream, packed.select(rows)

    def _send(self, backlog: WaitingRows, *, is_last: bool) -> None:
        for chunk in backlog.take(self._options.batch_size, is_last=is_last, is_checked=self._protocol.is_checked):
            for part in _bounded(chunk):
                self._sender.send(part)


def _bounded(chunk: Chunk) -> Iterator[Chunk]:
    if len(chunk.body) <= MAX_BYTES or chunk.rows == 1:
        yield chunk
        return
    for half in chunk.split(chunk.rows // 2):
        yield from _bounded(half)


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    written = [message for message in messages if isinstance(message, Written)]
    added = sum((message.added for message in written), Counter[str]())
    repeated = sum((message.repeated for message in written), Counter[str]())
    dropped = sum((message.dropped for message in written), Counter[str]())
    shown = ", ".join(f"{rows:,} rows to {stream}" for stream, rows in added.most_common(10)) or "no new rows"
    if len(added) > 10:
        shown += f" and others, {sum(added.values()):,} in total"
    if repeated:
        shown += f"; {sum(repeated.values()):,} were already there"
    if dropped:
        shown += f"; {sum(dropped.values()):,} oldest entries were dropped"
    return shown
