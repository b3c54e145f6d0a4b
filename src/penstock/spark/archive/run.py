"""The query that archives: streams in, files and commits out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.spark.archive.batch import MAX_FILE_ROWS, BatchArchiver
from penstock.spark.archive.checkpoint import last_committed, offsets_of
from penstock.spark.archive.durable import Step, check_writable, make_directory, no_step
from penstock.spark.archive.layout import Layout
from penstock.spark.archive.log import ManifestLog
from penstock.spark.archive.manifest import State
from penstock.spark.archive.run_lock import RunLock
from penstock.spark.archive.task import ArchiveTask, StagedFile
from penstock.spark.carried import Carried
from penstock.spark.master import is_connect
from penstock.spark.patience import patiently
from penstock.spark.prerequisites import has_read_limits
from penstock.spark.reading.catalogue import look, require
from penstock.spark.reading.offsets import IdRange, Position
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.planner import pack
from penstock.times import seconds_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GROUP = "penstock-archive"
MAX_BATCH_ROWS = 1_000_000


@dataclass(frozen=True)
class Archived:
    """A batch that is committed."""

    batch: int
    rows: int
    wall_s: float


@dataclass(frozen=True)
class ArchiveRun:
    """What is archived, and where to. `options` are those of the source, `url` among them."""

    root: str | Path
    streams: str
    options: Mapping[str, str] = field(default_factory=dict)
    group: str = GROUP
    fail_on_data_loss: bool = True
    max_batch_rows: int = MAX_BATCH_ROWS
    max_file_rows: int = MAX_FILE_ROWS
    trigger: str = "10 seconds"
    step: Step = no_step
    tell: Callable[[Archived], None] = lambda _: None

    def start(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        """Start the query; with `once` it ends when everything that is there now is archived.

        Guarantees: the consumer group `group` stands where the archive is committed, never ahead of it, so retention
        trims what is archived and nothing else.

        Raises: ConfigurationError for what cannot work, ArchiveConflict while another process archives to the root;
        nothing is written then.
        """
        if is_connect(spark):
            raise ConfigurationError("the archive needs a classic Spark session: its commits are made by the driver")
        layout = Layout.of(self.root)
        options = self.check()
        make_directory(layout.root)
        lock = RunLock.take(layout.lock)
        try:
            query = self._query(spark, layout, options, once=once)
        except BaseException:
            lock.give_back()
            raise
        threading.Thread(target=_hold, args=(lock, query), name="penstock archive lock", daemon=True).start()
        return query

    def _query(self, spark: SparkSession, layout: Layout, options: dict[str, str], *, once: bool) -> StreamingQuery:
        archiver = BatchArchiver(layout, self.fail_on_data_loss, self.max_file_rows, self.step)
        archiver.open()
        rows = spark.readStream.format("redis_streams").schema("id string").options(**options).load()
        # Said outright: on most clusters of YARN a plain path is in HDFS, and this one is read here.
        place = f"file:{layout.checkpoint}"
        writer = rows.writeStream.queryName(f"archive {layout.root}").option("checkpointLocation", place)
        source = SourceOptions.parse(options)

        def archive(frame: DataFrame, batch: int) -> None:
            context, started_s = frame.sparkSession.sparkContext, time.monotonic()
            offsets = offsets_of(layout.checkpoint, batch)
            commit = archiver.archive(offsets, lambda task: copy(context, source, task), batch)
            if commit is not None:
                rows = sum(each.rows for each in commit.ranges)
                self.tell(Archived(batch, rows, time.monotonic() - started_s))

        writer = writer.foreachBatch(archive)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(self._trigger_s() * 1000)} milliseconds").start()

    def check(self) -> dict[str, str]:
        """Look at everything that can be wrong, without Spark and without writing; return the options of the source."""
        layout = Layout.of(self.root)
        self._trigger_s()
        check_writable(layout.root)
        RunLock.check(layout.lock)
        given = self._options(layout, ManifestLog(layout).load())
        options = SourceOptions.parse(given)
        options.check_streaming()
        if not options.selection.is_pattern and not options.wait_for_streams:
            client = options.link.client()
            require(
                patiently(lambda: look(client, options.selection.names), options.retry_timeout.total_seconds()), client
            )
        if not has_read_limits():
            raise ConfigurationError(
                "an archive run needs Spark 4.2 or newer, which limits its batches: pip install 'pyspark>=4.2'"
            )
        return given

    def _trigger_s(self) -> float:
        found = seconds_of(self.trigger)
        if found is None:
            raise ConfigurationError(f"--every {self.trigger!r} must be a duration such as 30s or 10 seconds")
        return found

    def _options(self, layout: Layout, state: State) -> dict[str, str]:
        given = {
            "maxRowsPerTrigger": str(self.max_batch_rows),
            **self.options,
            "streams": self.streams,
            "group": self.group,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        ends = {name: end for name in state.streams if (end := state.end(name)) is not None}
        # Without its checkpoint a query goes on where the manifest ends, and notices what is gone since.
        given["startingOffsets"] = (
            starting_after(ends) if ends and last_committed(layout.checkpoint) is None else "earliest"
        )
        return given


def _hold(lock: RunLock, query: StreamingQuery) -> None:
    with suppress(Exception):  # however it ends; whoever waits for it is told
        query.awaitTermination()
    lock.give_back()


def starting_after(ends: Mapping[str, Position]) -> str:
    """Return the option startingOffsets for reading on behind some positions; other streams begin at their start."""
    return json.dumps(
        {name: f"({at.id}" if at.rank is None else {"id": at.id, "n": at.rank} for name, at in ends.items()}
    )


def copy(context: SparkContext, options: SourceOptions, task: ArchiveTask) -> list[StagedFile]:
    """Run the task on the executors; return the files.

    The tasks read Redis themselves. Spark plans the batch and keeps its offsets, but the entries do not pass through
    Java, where half of the time would go.
    """
    shares = pack(task.pieces, options.max_rows_per_partition, options.min_partitions)
    found = context.parallelize(shares, max(1, len(shares))).flatMap(Copying(task, options)).collect()
    return list(found)


@dataclass(frozen=True)
class Copying(Carried):
    """Called by Spark with each share of the task."""

    task: ArchiveTask
    options: SourceOptions

    def __call__(self, share: Sequence[IdRange]) -> list[StagedFile]:
        """Return the files that hold the share."""
        return self.task.copy(self.options, share)
