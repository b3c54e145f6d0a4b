"""A replay: messages of an origin into a stream, each once, however often it is run.

It is written as one partition of a Spark write (sink/writer.py) under the replay's name: the script that adds the
entries notes in the same step how many there are, with a checksum, so a replay that was killed goes on where it was,
and one that is done adds nothing. Another selection under the same name is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.redis.retry import Repeat
from penstock.spark.replay.origins import ReplayOrigin
from penstock.spark.replay.rewrite import Counts, Rewriter
from penstock.spark.replay.where import Where
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.option_values import Options
from penstock.spark.sink.identity import Identity
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writer import write_partition

_PARTITION = 0
_SELECTION = "selection"  # field beside the marks of the write
_REMEMBER = "30d"
_CHUNK = 500
_SLICES_A_SECOND = 10
_TEXTS, _BYTES = MapType(StringType(), StringType()), MapType(StringType(), BinaryType())
_SPARK_SCHEMA = StructType(
    [
        StructField("data", BinaryType()),
        StructField("key", StringType()),
        StructField("headers", _TEXTS),
        StructField("message_id", StringType()),
        StructField("fields", _BYTES),
    ]
)
Progress = Callable[[int], None]  # told how many messages have been handed on


@dataclass(frozen=True)
class Replayed:
    """What a replay did."""

    added: int
    repeated: int  # an earlier run of the same replay had added them


class Replay:
    """One replay into one stream; `options` are those of the sink, `url` among them."""

    def __init__(
        self,
        origin: ReplayOrigin,
        into: str,
        options: Mapping[str, str],
        *,
        name: str | None = None,
        where: Where | None = None,
        rate: float | None = None,
    ) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigurationError(
                f"--rate {rate:g} must be more than 0 messages a second; leave it out for no limit"
            )
        self._origin, self._where, self._rate = origin, where, rate
        self._selection = _digest(origin.name, None if where is None else where.condition, into)
        self.name = self._selection[:12] if name is None else check_name("--name", name, 200)
        self._query = f"replay:{self.name}"
        size = _CHUNK if rate is None else max(1, min(_CHUNK, int(rate / _SLICES_A_SECOND)))
        given = {
            **options,
            "stream": into,
            "writeId": self._query,
            "rememberFor": _REMEMBER,
            "batchSize": str(size),
        }
        self._options = SinkOptions.from_options(Options(given), _SPARK_SCHEMA, is_streaming=False)
        self._slice = size
        self._rewriter = Rewriter(self.name, into)
        self._into = into
        self._stopped = threading.Event()

    def count(self) -> Counts:
        """Look through everything and return what would be replayed; nothing is written."""
        freeze_gc()
        counts = Counts()
        for batch in self._origin.rows(self._where):
            self._rewriter.rewrite(batch, counts)
        return counts

    def done(self) -> int:
        """Return how many messages earlier runs of this replay have written."""
        client = self._options.link.client()
        stream = client.keys(self._into).stream
        kind = client.call(stream, "TYPE", stream)
        if kind not in (b"none", b"stream"):
            raise ConfigurationError(
                f"--into {self._into!r} is a {kind.decode()} in Redis, and no stream: name another"
            )
        key = client.keys(self._into).spark(self._query)
        mark, selection = client.call(key, "HMGET", key, f"p{_PARTITION}", _SELECTION)
        if selection is not None and selection.decode() != self._selection:
            raise ConfigurationError(
                f"the name {self.name!r} belongs to another replay into stream {self._into!r}, of other messages: "
                "choose another --name"
            )
        return int(mark.decode().split(" ")[1]) if mark else 0

    def _claim(self) -> None:
        """Note what the name stands for, before anything is written under it."""
        client = self._options.link.client()
        key = client.keys(self._into).spark(self._query)
        client.call(key, "HSETNX", key, _SELECTION, self._selection, repeat=Repeat.IDEMPOTENT)
        client.call(key, "EXPIRE", key, self._options.remember_s, repeat=Repeat.IDEMPOTENT)

    def run(self, progress: Progress = lambda _: None) -> Replayed:
        """Write what is not written yet; return how many that were, and how many were there.

        Raises: ConfigurationError if the name is that of another replay, ReplayDiffers if the messages are not those
        of the earlier run, and what a write raises.
        """
        self._claim()
        identity = Identity(self._query, None, 0, _PARTITION)
        written = write_partition(self._options, identity, self._paced(self.done(), progress))
        return Replayed(sum(written.added.values()), sum(written.repeated.values()))

    def stop(self) -> None:
        """End a run after what it is writing; the next one goes on. May be called from a signal handler."""
        self._stopped.set()

    def _paced(self, done: int, progress: Progress) -> Iterator[pa.RecordBatch]:
        sent, started_s = 0, time.monotonic()
        counts = Counts()
        for whole in self._origin.rows(self._where):
            batch = self._rewriter.rewrite(whole, counts)
            size = self._slice if self._rate is not None else max(1, batch.num_rows)
            for start in range(0, batch.num_rows, size):
                piece = batch.slice(start, size)
                sent += piece.num_rows
                # What is there already costs the readers of the stream nothing.
                due_s = 0.0 if self._rate is None else max(0, sent - done) / self._rate
                if due_s:
                    self._stopped.wait(max(0.0, started_s + due_s - time.monotonic()))
                if self._stopped.is_set():
                    return
                yield piece
                progress(sent)


def _digest(*selection: str | None) -> str:
    return hashlib.sha256(json.dumps(selection).encode()).hexdigest()
