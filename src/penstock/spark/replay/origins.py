"""Where messages are replayed from: dead letters, a file, or an archive. Always in one order, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock import ids
from penstock.errors import ConfigurationError, StreamMissing
from penstock.keys import StreamKeys
from penstock.spark.link import Link
from penstock.spark.patience import patiently
from penstock.spark.reading import columns
from penstock.spark.reading.catalogue import look
from penstock.spark.reading.offsets import IdRange
from penstock.spark.reading.rows import RowBuilder
from penstock.spark.reading.scan import Scanner
from penstock.spark.replay.lines import FILE_SCHEMA, read_lines
from penstock.spark.replay.where import Where

_RETRY_S = 60.0
_CHUNK_ROWS = 50_000  # rows that a filter sees at a time, and that are in memory


class Origin(Protocol):
    """Messages that can be replayed: the same in the same order whenever they are asked for."""

    name: str  # tells what is selected
    schema: pa.Schema

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return them, those that the filter lets through."""


@dataclass(frozen=True)
class Span:
    """From a time on, and before another one, in milliseconds."""

    low: int | None = None
    high: int | None = None

    def within(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the time."""
        ms = batch.column("ms")
        if self.low is not None:
            batch = batch.filter(pc.greater_equal(ms, self.low))
            ms = batch.column("ms")
        return batch if self.high is None else batch.filter(pc.less(ms, self.high))

    def __str__(self) -> str:
        """Tell it."""
        return f"from {self.low} to {self.high}"

    @property
    def sql(self) -> str:
        """The same as a filter."""
        low = "true" if self.low is None else f"ms >= {self.low}"
        return low if self.high is None else f"{low} and ms < {self.high}"


class DeadLetterOrigin:
    """The dead letters of a stream, up to the last one there is when this is made; times are those of their death."""

    schema = pa.schema([(name, kinds[0]) for name, kinds in columns.DEAD_LETTER.items()])

    def __init__(self, link: Link, stream: str, span: Span) -> None:
        self._link, self._span = link, span
        self._stream = StreamKeys(stream).default_dead_letters()
        self.name = f"dead letters of stream {stream!r}, {span}"
        state = patiently(lambda: look(link.client(), [self._stream]), _RETRY_S)[self._stream]
        if state is None:
            raise StreamMissing(f"there are no dead letters of stream {stream!r}: no stream {self._stream!r} exists")
        low = ids.ZERO if span.low is None else ids.before(f"{span.low}-0")
        high = state.last_id if span.high is None else ids.before(f"{span.high}-0")
        self._range = IdRange(self._stream, low, min(high, state.last_id, key=ids.parse))

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return the dead letters in the order of their ids."""
        build = RowBuilder(self.schema).build
        scanner = Scanner(self._link.client(), retry_timeout_s=_RETRY_S, fail_on_data_loss=False)
        pages = [] if self._range.is_empty else scanner.pages([self._range])
        yield from _filtered((build([page]) for page in pages), where)


class FileOrigin:
    """The lines of a file, one JSON object each; see lines.py."""

    schema = FILE_SCHEMA

    def __init__(self, file: Path, span: Span, stream: str | None = None) -> None:
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise ConfigurationError(f"--file {file} cannot be read: {error.strerror}") from None
        self._file, self._span, self._stream = file, span, stream
        self.name = f"file {file.absolute()}, stream {stream!r}, {span}"

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return the messages in the order of their lines; raise ConfigurationError for a line that is none."""
        batches = read_lines(self._file, needs_id=self._span != Span())
        if self._stream is not None:
            batches = (batch.filter(pc.equal(batch.column("stream"), self._stream)) for batch in batches)
        yield from _filtered((self._span.within(batch) for batch in batches), where)


def _filtered(batches: Iterator[pa.RecordBatch], where: Where | None) -> Iterator[pa.RecordBatch]:
    if where is None:
        yield from batches
        return
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _CHUNK_ROWS:
            yield from where.kept(pa.Table.from_batches(waiting))
            waiting = []
    if waiting:
        yield from where.kept(pa.Table.from_batches(waiting))
