"""Where messages are replayed from: dead letters, a file, or an archive. Always in one order, some rows at a time."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys
from penstock.protection import is_protected
from penstock.spark.archive.file_reader import FileChecks, missing, read_rows
from penstock.spark.archive.read import chosen, cold_frame, files_between
from penstock.spark.archive.state import SCHEMA, FileEntry, between
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.format import columns
from penstock.spark.lake.files import Location
from penstock.spark.payload.opening import REFUSED, Opening, opened_rows
from penstock.spark.runtime.errors import filtered, one_line_errors
from penstock.spark.runtime.link import Link
from penstock.spark.source.catalogue import newest_dead_letter
from penstock.spark.source.offsets import IdRange
from penstock.spark.source.redis_log import Scanner
from penstock.spark.source.rows import LAST_MS, RowBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHUNK_ROWS = 50_000  # rows that a filter sees at a time, and that are in memory
_LINES_AT_ONCE = 10_000
_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_MOST_IN_COLUMN = (1 << 63) - 1  # of a column
_KNOWN = {"stream", "id", "ms", "seq", "timestamp", "data", "data_base64", "key", "headers", "message_id", "fields"}
_SPARK_ROWS = 500_000  # rows of files that Spark reads, filters and sorts at a time


class Where:
    """A condition over the columns of an origin."""

    def __init__(self, condition: str, schema: pa.Schema, start: Callable[[], SparkSession]) -> None:
        self.spark = start()
        self.condition, self._schema = condition, schema
        filtered(self.spark.createDataFrame(schema.empty_table()), condition)  # classic Spark looks at it at once

    def kept(self, table: pa.Table) -> list[pa.RecordBatch]:
        """Return the rows that it lets through, in their order."""
        if not table.num_rows:
            return []
        return self._collected(self.spark.createDataFrame(table).where(self.condition))

    def sorted(self, rows: DataFrame) -> list[pa.RecordBatch]:
        """Return the rows that it lets through, in the order of their ids."""
        return self._collected(rows.where(self.condition).orderBy("ms", "seq"))

    def _collected(self, rows: DataFrame) -> list[pa.RecordBatch]:
        with one_line_errors(self.condition):
            batches: list[pa.RecordBatch] = rows.toArrow().cast(self._schema).to_batches()
        return batches


class ReplayOrigin(Protocol):
    """Messages that can be replayed: the same in the same order whenever they are asked for."""

    name: str  # identifies the selection
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
        """Describe it."""
        return f"from {self.low} to {self.high}"

    @property
    def sql(self) -> str:
        """The same as a filter."""
        low = "true" if self.low is None else f"ms >= {self.low}"
        return low if self.high is None else f"{low} and ms < {self.high}"


class DeadLetterOrigin:
    """The dead letters of a stream, up to the last one there is when this is made; times are those of their death.

    If the link has keys, payloads are opened, and are null where they are not authentic: those of every origin.
    """

    schema = pa.schema([(name, kinds[0]) for name, kinds in columns.DEAD_LETTER.items()])

    def __init__(self, link: Link, stream: str, span: Span) -> None:
        self._link, self._opening = link, Opening(link, stream)
        self._stream = StreamKeys(stream).default_dead_letters()
        self.name = f"dead letters of stream {stream!r}, {span}"
        last_id = newest_dead_letter(link.client(), stream)
        low = ids.ZERO if span.low is None else ids.before(f"{span.low}-0")
        high = last_id if span.high is None else ids.before(f"{span.high}-0")
        self._range = IdRange(self._stream, low, min(high, last_id, key=ids.parse))

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return the dead letters in the order of their ids."""
        build = RowBuilder(self.schema).build
        scanner = Scanner(self._link.client(), fail_on_data_loss=False)
        pages = [] if self._range.is_empty else scanner.pages([self._range])
        yield from _filtered((self._opening.opened(build([page])) for page in pages), where)


class FileOrigin:
    """The lines of a file, one JSON object each.

        {"stream": "orders", "id": "1700000000000-0", "data": "...", "key": "...", "headers": {}, "message_id": "..."}

    All but the payload may be missing. `data` is text, or any other JSON, which is then the payload; `data_base64` is
    bytes. `fields` are further fields of the entry, as texts.
    """

    schema = SCHEMA

    def __init__(self, file: Path, span: Span, stream: str | None = None, link: Link | None = None) -> None:
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise ConfigurationError(f"cannot read --file {file}: {error.strerror}") from None
        self._file, self._span, self._stream, self._link = file, span, stream, link
        self.name = f"file {file.absolute()}, stream {stream!r}, {span}"

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return the messages in the order of their lines; raise ConfigurationError for a line that is none."""
        batches = _read_lines(self._file, needs_id=self._span != Span())
        if self._stream is not None:
            batches = (batch.filter(pc.equal(batch.column("stream"), self._stream)) for batch in batches)
        yield from _filtered((self._opened(self._span.within(batch)) for batch in batches), where)

    def _opened(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Whoever runs the command vouches for the file: only what is marked as protected has to be authentic.
        closed = [raw is not None and is_protected(raw) for raw in batch.column("data").to_pylist()]
        if self._link is None or not any(closed):
            return batch
        opened = Opening(self._link).opened(batch)
        data = pc.if_else(pa.array(closed), opened.column("data"), batch.column("data"))
        return opened.set_column(opened.schema.get_field_index("data"), opened.schema.field("data"), data)


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


# --- lines of a file ------------------------------------------------------------------------------


def _read_lines(file: Path, *, needs_id: bool) -> Iterator[pa.RecordBatch]:
    """Return the messages of a file; raise ConfigurationError with the number of a line that is none."""
    rows: list[dict[str, Any]] = []
    with file.open("rb") as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            try:
                rows.append(_row(json.loads(line), f"file:{file.name}", number, needs_id=needs_id))
            except UnicodeEncodeError:
                raise ConfigurationError(
                    f"{file}, line {number}: it contains a lone surrogate, which is not valid text"
                ) from None
            except (ValueError, TypeError, RecursionError) as error:
                raise ConfigurationError(f"{file}, line {number}: {error}") from None
            if len(rows) >= _LINES_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, SCHEMA)
                rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def _row(document: Any, default_stream: str, number: int, *, needs_id: bool) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TypeError("a line must be a JSON object")
    unknown = sorted(document.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"unknown name {unknown[0]!r}; available: {', '.join(sorted(_KNOWN))}")
    if ("data" in document) == ("data_base64" in document):
        raise ValueError("set either data or data_base64")
    if needs_id and "id" not in document:
        raise ValueError("it has no id and therefore no time: remove --since and --until")
    entry_id = str(document.get("id", f"0-{number}"))
    if not _ID.fullmatch(entry_id):
        raise ValueError(f"id {entry_id!r} is invalid: write it as 1794700800000-0")
    whole = entry_id if "-" in entry_id else f"{entry_id}-0"
    ms, seq = ids.parse(whole) if ids.is_id(whole) else (_MOST_IN_COLUMN, _MOST_IN_COLUMN)
    if max(ms * 1000, seq) > _MOST_IN_COLUMN:
        raise ValueError(f"id {entry_id!r} is too large")
    return {
        "stream": _text(document, "stream") or default_stream,
        "id": entry_id,
        "ms": ms,
        "seq": seq,
        "timestamp": ms * 1000 if ms <= LAST_MS else None,
        "data": _payload(document),
        "key": _text(document, "key"),
        "headers": list(_texts(document, "headers").items()),
        "message_id": _text(document, "message_id"),
        "fields": [(name, value.encode()) for name, value in _texts(document, "fields").items()],
    }


def _text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string")
    (value or "").encode()  # a lone surrogate, which JSON lets through, is no text
    return value


def _texts(document: dict[str, Any], name: str) -> dict[str, str]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or any(isinstance(each, dict | list) or each is None for each in value.values()):
        raise TypeError(f"{name} must be an object of strings")
    found = {key: each if isinstance(each, str) else json.dumps(each) for key, each in value.items()}
    "".join(itertools.chain.from_iterable(found.items())).encode()
    return found


def _payload(document: dict[str, Any]) -> bytes:
    if "data_base64" in document:
        return base64.b64decode(_text(document, "data_base64") or "", validate=True)
    data = document["data"]
    if isinstance(data, str):
        return data.encode()
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


# --- an archive, which may be compacted meanwhile ----------------------------------------------------


class ArchiveOrigin:
    """Entries of an archived stream, up to the last one that is archived when this is made."""

    schema = SCHEMA

    def __init__(self, root: str | Path | Location, stream: str, span: Span, link: Link | None = None) -> None:
        self._table, self._stream, self._span, self._link = ArchiveTable.of(root), stream, span, link
        chosen(self._table.load(), stream, is_hot=False)
        self._checks = FileChecks(self._table)
        self._files = self._named()
        self._upto = self._files[-1].last if self._files else ids.ZERO
        self.name = f"archive {self._table.location}, stream {stream!r}, {span}"

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        """Return the entries in the order of their ids.

        Guarantees: no row of a file whose bytes are not those that were written.

        Raises: ArchiveDamaged for a file that is missing, changed or cannot be read.
        """
        after = ids.ZERO
        while True:
            files = [entry for entry in self._files if ids.parse(entry.last) > ids.parse(after)]
            try:
                for batch in self._batches(where, files):
                    kept = between(batch, after, self._upto)
                    if kept.num_rows:
                        yield kept
                        after = kept.column("id")[-1].as_py()
            except FileNotFoundError as error:
                files, self._files = self._files, self._named()
                if files == self._files:  # else a compaction has replaced and cleaned it meanwhile
                    raise missing(error) from None
            else:
                return

    def _named(self) -> list[FileEntry]:
        return files_between(self._table.load(), [self._stream], self._span.low, self._span.high)

    def _batches(self, where: Where | None, files: list[FileEntry]) -> Iterator[pa.RecordBatch]:
        if where is None:
            for entry in files:
                self._checks.check(entry)
                for batch in read_rows(self._table, entry):
                    kept = self._span.within(batch)
                    yield kept if self._link is None else Opening(self._link).opened(kept)
            return
        for group in _groups(files):
            for entry in group:
                self._checks.check(entry)  # also that it exists, which Spark would report in its own words
            yield from where.sorted(self._frame(where, group))

    def _frame(self, where: Where, files: list[FileEntry]) -> DataFrame:
        rows = cold_frame(where.spark, self._table, files).where(self._span.sql)
        return opened_rows(rows, self._link).drop(REFUSED)


def _groups(files: list[FileEntry]) -> Iterator[list[FileEntry]]:
    group: list[FileEntry] = []
    for entry in files:
        if group and sum(each.rows for each in group) + entry.rows > _SPARK_ROWS:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
