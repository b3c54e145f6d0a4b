"""What an archive holds, and its entries as a table: alone or with what Redis holds after it, each entry once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock import ids
from penstock.errors import ConfigurationError, StreamMissing
from penstock.spark.archive.file_reader import batches_of
from penstock.spark.archive.run import starting_after
from penstock.spark.archive.state import DDL, WHOLE_FIELDS, FileEntry, RangeEntry, State
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location
from penstock.spark.payload.opening import REFUSED, opened_rows, without_keys
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.link import Link, retry
from penstock.spark.runtime.master import enough_tasks
from penstock.spark.runtime.option_values import Options
from penstock.spark.source.catalogue import find_gap, look, naming, report_loss
from penstock.spark.source.options import SourceOptions, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHECKED = "parquet.page.verify-checksum.enabled"
Moment = str | int | datetime | None


def read(
    spark: SparkSession,
    root: str | Path | Location,
    streams: str | Sequence[str] | None = None,
    from_: Moment = None,
    to: Moment = None,
    *,
    hot: Mapping[str, str] | None = None,
    fail_on_data_loss: bool = True,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return archived entries with the columns of the source; from a time on, and before another one.

    With `hot`, the options of the source (`url` and so on), also what Redis holds after the last archived id; with
    `protectionFile` among them, payloads are opened. The files are those that the table consists of when this is
    called.

    Guarantees: no entry twice. None is missing: one that was trimmed before it was archived raises DataLost now or
    when the table is read; with `fail_on_data_loss=False` it is logged instead.

    Raises: ConfigurationError, StreamMissing, ArchiveDamaged, DataLost.
    """
    low, high = moment_ms("from", from_), moment_ms("to", to)
    check_order(low, high)
    table = ArchiveTable.of(root, storage_options)
    state = table.load()
    names = chosen(state, streams, is_hot=hot is not None)
    frames = [cold_frame(spark, table, files_between(state, names, low, high))]
    if hot is not None:
        # What is archived and trimmed after this moment is found by its tasks.
        given = {**without_keys(hot), **archive_options(table.location)}
        frames.append(_hot_frame(spark, state, names, given, fail_on_data_loss=fail_on_data_loss))
    found = reduce(lambda left, right: left.unionByName(right), frames)
    if low is not None:
        found = found.where(f"ms >= {low}")
    found = found if high is None else found.where(f"ms < {high}")
    return found if hot is None else opened_rows(found, Link.from_options(Options(hot))).drop(REFUSED)


def moment_ms(name: str, moment: Moment) -> int | None:
    """Return a time in milliseconds; raise ConfigurationError for what is none."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return milliseconds(name, str(moment))


def check_order(low: int | None, high: int | None) -> None:
    """Raise ConfigurationError if a time range is empty."""
    if low is not None and high is not None and low >= high:
        raise ConfigurationError(f"from ({low}) must be before to ({high})")


def chosen(state: State, streams: str | Sequence[str] | None, *, is_hot: bool) -> list[str]:
    """Return the names of the streams; raise StreamMissing for one that is not archived, unless Redis may have it."""
    names = state.streams if streams is None else [streams] if isinstance(streams, str) else list(streams)
    unknown = [name for name in names if name not in state.ranges]
    if unknown and not is_hot:
        raise StreamMissing(
            f"the archive has no stream {', '.join(map(repr, unknown[:5]))}; it has "
            f"{', '.join(map(repr, state.streams[:20])) or 'none'}"
        )
    return names


def files_between(state: State, streams: Sequence[str], low: int | None, high: int | None) -> list[FileEntry]:
    """Return the files that hold entries of a time, stream by stream, in order."""
    by_stream = state.files_by_stream()
    return [
        entry
        for name in streams
        for entry in by_stream.get(name, ())
        if (low is None or ids.parse(entry.last)[0] >= low) and (high is None or ids.parse(entry.first)[0] < high)
    ]


def cold_frame(spark: SparkSession, table: ArchiveTable, files: Sequence[FileEntry]) -> DataFrame:
    """Return the rows of some files."""
    for entry in files:
        table.check(entry.path)
    if not files:
        return spark.createDataFrame([], DDL)
    if table.location.local is None:  # Spark would need the jars of the store
        paths = spark.createDataFrame([(entry.path,) for entry in files], "path string")
        spread = paths.repartition(min(len(files), enough_tasks(spark)))
        rows = spread.mapInArrow(_ArchivedRows(table.location), DDL)
    else:
        # With a schema of ours Spark opens no file to find one; nor does it look for columns in the names of folders.
        reader = spark.read.schema(DDL).option(_CHECKED, "true")  # a page with a flipped bit ends the query
        rows = reader.parquet(*[f"file:{table.location.local / entry.path}" for entry in files])
    return rows.selectExpr(*[f"{WHOLE_FIELDS} as fields" if name == "fields" else name for name in rows.columns])


@dataclass(frozen=True)
class _ArchivedRows(Shipped):
    """Reads files in the tasks."""

    location: Location

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = self.location.store
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from batches_of(store.opened(path))


def _hot_frame(
    spark: SparkSession, state: State, names: Sequence[str], hot: Mapping[str, str], *, fail_on_data_loss: bool
) -> DataFrame:
    ends = {name: end for name in names if (end := state.end(name)) is not None}
    given = {
        **hot,
        **naming(names),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "waitForStreams": "true",  # one that is deleted is looked for here
        "startingOffsets": starting_after(ends) if ends else "earliest",
    }
    options = SourceOptions.parse(given)
    options.check_batch()
    states = retry(lambda: look(options.link.client(), names), options.retry_timeout.total_seconds())
    for name in names:
        if name not in ends and states[name] is None:
            raise StreamMissing(f"stream {name!r} exists neither in the archive nor in Redis")
        gap = find_gap(name, ends[name], states[name]) if name in ends else None
        if gap is not None:
            lost, hint = f"between the archive and Redis: {gap}", "Pass fail_on_data_loss=False to read the rest"
            report_loss(lost, hint, fails=fail_on_data_loss, then="reading the rest")
    return spark.read.format("redis_streams").schema(DDL).options(**given).load()


def archive_options(location: Location) -> dict[str, str]:
    """Return the options of the source that name an archive."""
    return {"archive": location.uri, **{f"archive.{name}": value for name, value in location.options}}


@dataclass(frozen=True)
class StreamStatus:
    """One stream of an archive."""

    stream: str
    rows: int
    files: int
    bytes: int
    first: str | None
    last: str | None
    upto: str  # archived, though the last entries may have been deleted before
    days: int
    lost: int | None  # None = unknown


def is_archive(root: str | Path | Location, storage_options: Mapping[str, str] | None = None) -> bool:
    """Return whether anything was ever archived there."""
    return ArchiveTable.of(root, storage_options).exists()


def status(root: str | Path | Location, *, storage_options: Mapping[str, str] | None = None) -> list[StreamStatus]:
    """Return what is archived of each stream."""
    state = ArchiveTable.of(root, storage_options).load()
    return [_of(stream, files, state.ranges.get(stream, [])) for stream, files in state.files_by_stream().items()]


def _of(stream: str, files: Sequence[FileEntry], ranges: Sequence[RangeEntry]) -> StreamStatus:
    losses = [each.lost for each in ranges]
    return StreamStatus(
        stream=stream,
        rows=sum(entry.rows for entry in files),
        files=len(files),
        bytes=sum(entry.bytes for entry in files),
        first=files[0].first if files else None,
        last=files[-1].last if files else None,
        upto=ranges[-1].upto if ranges else ids.ZERO,
        days=len({entry.day for entry in files}),
        lost=None if None in losses else sum(lost or 0 for lost in losses),
    )
