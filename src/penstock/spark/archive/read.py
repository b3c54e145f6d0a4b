"""Reads an archive as a table, alone or with what Redis holds behind it: each entry once, and none missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import ids
from penstock.errors import ConfigurationError, DataLost, StreamMissing
from penstock.spark.archive.layout import Layout, inside
from penstock.spark.archive.manifest import FileEntry, State
from penstock.spark.archive.rows import DDL, WHOLE_FIELDS
from penstock.spark.archive.run import starting_after
from penstock.spark.archive.status import load_state
from penstock.spark.patience import patiently
from penstock.spark.reading.catalogue import look, naming
from penstock.spark.reading.loss import find_gap
from penstock.spark.reading.options import SourceOptions, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("penstock.spark")
_CHECKED = "parquet.page.verify-checksum.enabled"
Moment = str | int | datetime | None


def read(
    spark: SparkSession,
    root: str | Path,
    streams: str | Sequence[str] | None = None,
    from_: Moment = None,
    to: Moment = None,
    *,
    hot: Mapping[str, str] | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return archived entries with the columns of the source; from a time on, and before another one.

    With `hot`, the options of the source (`url` and so on), also what Redis holds behind the last archived id. The
    files are those that the manifest names when this is called.

    Guarantees: no entry twice. None is missing: one that was trimmed before it was archived raises DataLost, now or
    when the table is read; with `fail_on_data_loss=False` it is logged instead.

    Raises: ConfigurationError, StreamMissing, ArchiveDamaged, DataLost.
    """
    low, high = moment_ms("from", from_), moment_ms("to", to)
    check_order(low, high)
    state = load_state(root)
    names = chosen(state, streams, is_hot=hot is not None)
    frames = [cold_frame(spark, Layout.of(root).root, files_between(state, names, low, high))]
    if hot is not None:
        # What is archived and trimmed after this moment is found by its tasks.
        given = {**hot, "archive": str(Layout.of(root).root)}
        frames.append(_hot_frame(spark, state, names, given, fail_on_data_loss=fail_on_data_loss))
    found = reduce(lambda left, right: left.unionByName(right), frames)
    if low is not None:
        found = found.where(f"ms >= {low}")
    return found if high is None else found.where(f"ms < {high}")


def moment_ms(name: str, moment: Moment) -> int | None:
    """Return a time in milliseconds; raise ConfigurationError for what is none."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return milliseconds(name, str(moment))


def check_order(low: int | None, high: int | None) -> None:
    """Raise ConfigurationError if nothing can lie between two times."""
    if low is not None and high is not None and low >= high:
        raise ConfigurationError(f"from ({low}) must be before to ({high}): nothing lies between them")


def chosen(state: State, streams: str | Sequence[str] | None, *, is_hot: bool) -> list[str]:
    """Return the names of the streams; raise StreamMissing for one that is not archived, unless Redis may have it."""
    names = state.streams if streams is None else [streams] if isinstance(streams, str) else list(streams)
    unknown = [name for name in names if name not in state.ranges]
    if unknown and not is_hot:
        raise StreamMissing(
            f"there is no stream {', '.join(map(repr, unknown[:5]))} in the archive; it has "
            f"{', '.join(map(repr, state.streams[:20])) or 'none'}"
        )
    return names


def files_between(state: State, streams: Sequence[str], low: int | None, high: int | None) -> list[FileEntry]:
    """Return the files that hold entries of a time, stream by stream, in order."""
    return [
        entry
        for name in streams
        for entry in state.files_of(name)
        if (low is None or ids.parse(entry.last)[0] >= low) and (high is None or ids.parse(entry.first)[0] < high)
    ]


def cold_frame(spark: SparkSession, root: Path, files: Sequence[FileEntry]) -> DataFrame:
    """Return the rows of some files."""
    if not files:
        return spark.createDataFrame([], DDL)
    # With a schema of ours Spark opens no file to find one; and it looks for no columns in the names of directories.
    reader = spark.read.schema(DDL).option(_CHECKED, "true")  # a page with a flipped bit ends the query
    rows = reader.parquet(*[f"file:{inside(root, entry.path)}" for entry in files])
    return rows.selectExpr(*[f"{WHOLE_FIELDS} as fields" if name == "fields" else name for name in rows.columns])


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
    states = patiently(lambda: look(options.link.client(), names), options.retry_timeout.total_seconds())
    for name in names:
        if name not in ends and states[name] is None:
            raise StreamMissing(f"there is no stream {name!r}, neither in the archive nor in Redis")
        gap = find_gap(name, ends[name], states[name]) if name in ends else None
        if gap is None:
            continue
        if fail_on_data_loss:
            raise DataLost(f"between the archive and Redis: {gap}. Pass fail_on_data_loss=False to read what is left")
        logger.warning("between the archive and Redis: %s; reading what is left", gap)
    return spark.read.format("redis_streams").schema(DDL).options(**given).load()
