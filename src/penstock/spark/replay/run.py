"""A replay: messages of an origin into a stream, each once, however often it is run.

It is written as one partition of a Spark write (sink/writer.py) under the replay's name: the script that adds the
entries notes in the same step how many there are, with a checksum, so a replay that was killed continues where it
was, and one that is done adds nothing. Another selection under the same name raises an error.

A message that is replayed gets a new message id, and headers that name its origin. With keys, its payload is
protected anew, for the new stream and id.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import dead_letter_record, envelope
from penstock.dead_letter_record import CUT, WELL_KNOWN, kept_fields
from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.protection import Protection
from penstock.redis.retry import Repeat
from penstock.spark.payload.opening import without_keys
from penstock.spark.replay.origins import ReplayOrigin, Where
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.link import Link
from penstock.spark.runtime.option_values import Options
from penstock.spark.sink.entries import MAX_FIELDS, MAX_NAME
from penstock.spark.sink.identity import Identity
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writer import write_partition

Pairs: TypeAlias = list[tuple[str, Any]]
REPLAY_OF = "replay_of"  # header: stream/id of the entry that was first published
REPLAY = "replay"  # header: name of the last replay
SCHEMA = pa.schema(
    [
        ("data", pa.binary()),
        ("key", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("message_id", pa.string()),
        ("fields", pa.map_(pa.string(), pa.binary())),
    ]
)
# What has a column of its own, or was about the life of the old entry.
_LEFT = {
    envelope.DATA, envelope.KEY, envelope.HEADERS, envelope.MESSAGE_ID,
    envelope.EXPIRES_AT, envelope.DEDUP_KEY, envelope.REDRIVES,
}  # fmt: skip
_MOST_OTHERS = (
    MAX_FIELDS - len(WELL_KNOWN) - 1
)  # foreign fields, in addition to those that Penstock knows and `dlq_cut`
_REPLACED = "\ufffd"  # in a text: what was no UTF-8
_SOURCE, _SOURCE_ID = dead_letter_record.FIELDS["source_stream"], dead_letter_record.FIELDS["source_id"]
_PARTITION = 0
_SELECTION = "selection"  # field next to the marks of the write
_REMEMBER = "30d"
_CHUNK = 500
_SLICES_A_SECOND = 10
_SPARK_SCHEMA = from_arrow_schema(SCHEMA)
Progress = Callable[[int], None]  # called with the number of messages handed on


@dataclass
class Counts:
    """What was found."""

    wanted: int = 0
    looping: int = 0  # a replay wrote them into the stream where they would go again
    empty: int = 0  # without a payload, or one that is authentic
    cut: int = 0  # written without some of their fields: there is no room for all


class Rewriter:
    """Rewrites the messages of one replay."""

    def __init__(self, name: str, into: str, key: str = "", protection: Protection | None = None) -> None:
        self._name, self._into, self._key, self._protection = name, into, key, protection

    def rewrite(self, batch: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
        """Return the messages to be written."""
        kept: list[bool] = []
        made: list[tuple[Pairs, str, Pairs]] = []
        key = batch.column("key")
        is_odd = pc.or_(pc.greater(pc.utf8_length(key), MAX_NAME), pc.match_substring(key, _REPLACED)).fill_null(False)
        has_data = batch.column("data").is_valid().to_pylist()
        given = [batch.column(name).to_pylist() for name in ("stream", "id", "headers", "fields")]
        for row in zip(is_odd.to_pylist(), has_data, *given, strict=True):
            message = self._message(*row, counts=counts)
            kept.append(message is not None)
            if message is not None:
                made.append(message)
        counts.wanted += len(made)
        headers, ids, fields = zip(*made, strict=True) if made else ((), (), ())
        # Payloads and keys stay as they are: they are not touched row by row.
        rest = batch if len(made) == batch.num_rows else batch.filter(pa.array(kept, pa.bool_()))
        key = rest.column("key")
        is_field = pa.array([bool(pairs) and pairs[0][0] == envelope.KEY for pairs in fields], pa.bool_())
        columns = {
            "data": self._protected(rest.column("data"), ids),
            "key": pc.if_else(pc.or_(pc.equal(key, ""), is_field), None, key),
            "headers": headers,
            "message_id": ids,
            "fields": fields,
        }
        return pa.RecordBatch.from_arrays([_array(columns[each.name], each.type) for each in SCHEMA], schema=SCHEMA)

    def _protected(self, data: pa.Array, ids: Sequence[str]) -> pa.Array:
        if self._protection is None:
            return data
        # A second run must give the same bytes, which are compared with those of the first.
        protect = partial(self._protection.protect, is_repeatable=True)
        rows = zip(data.to_pylist(), ids, strict=True)
        return pa.array([protect(raw, self._key, name) for raw, name in rows], pa.binary())

    def _message(
        self, has_odd_key: bool, has_data: bool, stream: str, entry_id: str, pairs: Any, fields: Any, *, counts: Counts
    ) -> tuple[Pairs, str, Pairs] | None:
        """Return the headers, the message id and the further fields; None if it is not to be written."""
        headers = dict(pairs or ())
        given = dict(fields or ())
        if _SOURCE_ID in given and _SOURCE in given:
            stream, entry_id = envelope.text(given[_SOURCE]), envelope.text(given[_SOURCE_ID])
        if self._is_loop(stream, headers):
            counts.looping += 1
            return None
        kept = [pair for pair in given.items() if pair[0] not in _LEFT and not dead_letter_record.is_mark(pair[0])]
        if has_odd_key and envelope.KEY in given:
            kept.insert(0, (envelope.KEY, given[envelope.KEY]))  # as it was: the text of the column is not, or too long
        if len(kept) > _MOST_OTHERS:
            kept = _cut(kept, counts)
        if not has_data and (not kept or self._protection is not None):
            counts.empty += 1
            return None
        source = f"{stream}/{entry_id}"
        origin = headers.setdefault(REPLAY_OF, source)
        headers[REPLAY] = self._name
        return list(headers.items()), message_id(self._name, origin, source), kept

    def _is_loop(self, stream: str, headers: dict[str, str]) -> bool:
        if REPLAY_OF not in headers:
            return False
        return self._into in (stream, headers[REPLAY_OF].rpartition("/")[0])


def _cut(fields: Pairs, counts: Counts) -> Pairs:
    flat, cut = kept_fields(envelope.as_fields(dict(fields)), _MOST_OTHERS)
    if not cut:
        return fields
    counts.cut += 1
    return list({**envelope.as_mapping(flat), CUT: cut.encode()}.items())


def message_id(name: str, origin: str, source: str) -> str:
    """Return the id of a replayed message: the same whenever the same replay writes it."""
    return hashlib.sha256(f"{name}\0{origin}\0{source}".encode()).hexdigest()[:32]


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


@dataclass(frozen=True)
class Replayed:
    """What a replay did."""

    added: int
    repeated: int  # an earlier run of the same replay had added them


class Replay:
    """One replay into one stream; `options` are those of the sink, `url` among them, or `protectionFile`."""

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
            raise ConfigurationError(f"--rate {rate:g} must be more than 0 messages per second; omit it for no limit")
        self._origin, self._where, self._rate = origin, where, rate
        self._selection = _digest(origin.name, None if where is None else where.condition, into)
        self.name = self._selection[:12] if name is None else check_name("--name", name, 200)
        self._query = f"replay:{self.name}"
        size = _CHUNK if rate is None else max(1, min(_CHUNK, int(rate / _SLICES_A_SECOND)))
        link = Link.from_options(Options(options))
        given = {
            **without_keys(options),
            "stream": into,
            "writeId": self._query,
            "rememberFor": _REMEMBER,
            "batchSize": str(size),
        }
        self._options = SinkOptions.from_options(Options(given), _SPARK_SCHEMA, is_streaming=False)
        self._slice = size
        client = link.client()
        self._rewriter = Rewriter(self.name, into, client.keys(into).stream, client.protection)
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
                f"--into {self._into!r} is a {kind.decode()} in Redis, not a stream: choose another name"
            )
        key = client.keys(self._into).spark(self._query)
        mark, selection = client.call(key, "HMGET", key, f"p{_PARTITION}", _SELECTION)
        if selection is not None and selection.decode() != self._selection:
            raise ConfigurationError(
                f"the name {self.name!r} belongs to another replay into stream {self._into!r}, with different "
                "messages: choose another --name"
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
        """End a run after what it is writing; the next one continues. May be called from a signal handler."""
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
                # Messages that are already there cost the readers of the stream nothing.
                due_s = 0.0 if self._rate is None else max(0, sent - done) / self._rate
                if due_s:
                    self._stopped.wait(max(0.0, started_s + due_s - time.monotonic()))
                if self._stopped.is_set():
                    return
                yield piece
                progress(sent)


def _digest(*selection: str | None) -> str:
    return hashlib.sha256(json.dumps(selection).encode()).hexdigest()
