"""The query that archives: streams in, files and commits out."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.spark.archive.batch import MAX_FILE_ROWS, BatchArchiver
from penstock.spark.archive.compact import GRACE_S, SmallFiles, check_grace
from penstock.spark.archive.file_writer import ArchiveTask, Copied
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.archive.state import ArchiveDamaged, State
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import FailPoint, Location, make_directory, no_fail_point
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.errors import StopAsked
from penstock.spark.runtime.link import retry
from penstock.spark.runtime.master import is_connect
from penstock.spark.runtime.option_values import duration_s
from penstock.spark.runtime.versions import has_read_limits
from penstock.spark.source.catalogue import look, require
from penstock.spark.source.offsets import IdRange, Offsets, Position, newest_number
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.redis_log import RedisLog

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GROUP = "penstock-archive"
MAX_BATCH_ROWS = 1_000_000
_CHECKPOINT = "_checkpoint"


@dataclass(frozen=True)
class CommittedBatch:
    """A batch that is committed."""

    batch: int
    rows: int
    wall_s: float


@dataclass(frozen=True)
class ArchiveRun:
    """What is archived, and where to. `options` are those of the source, `url` among them."""

    root: str | Path | Location
    streams: str
    options: Mapping[str, str] = field(default_factory=dict)
    group: str = GROUP
    fail_on_data_loss: bool = True
    max_batch_rows: int = MAX_BATCH_ROWS
    max_file_rows: int = MAX_FILE_ROWS
    trigger: str = "10 seconds"
    storage_options: Mapping[str, str] = field(default_factory=dict)
    compacts: bool = True  # small files, whenever there are many
    grace_s: float = GRACE_S  # how long a run keeps replaced files, also those that another compaction has replaced
    step: FailPoint = no_fail_point
    tell: Callable[[CommittedBatch], None] = lambda _: None
    is_stopping: Callable[[], bool] = lambda: False  # asked before a batch, a merge or a retry: none begins then

    def start(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        """Start the query; with `once` it ends when everything available now is archived.

        Guarantees: the consumer group `group` stands where the archive is committed, never ahead of it, so retention
        trims what is archived and nothing else.

        Raises: ConfigurationError for what cannot work, ArchiveConflict while another process archives to the root;
        nothing is written then.
        """
        if is_connect(spark):
            raise ConfigurationError("archiving needs a classic Spark session, because the driver makes the commits")
        options, table = self.check(), self._table()
        if table.location.local is not None:
            make_directory(table.location.local)
        lock = ArchiveLock.take(table.location)
        try:
            query = self._query(spark, table, options, once=once)
        except BaseException:
            lock.give_back()
            raise
        threading.Thread(target=_hold, args=(lock, query), name="penstock archive lock", daemon=True).start()
        return query

    def _table(self) -> ArchiveTable:
        return ArchiveTable.of(self.root, self.storage_options)

    def _query(
        self, spark: SparkSession, table: ArchiveTable, options: dict[str, str], *, once: bool
    ) -> StreamingQuery:
        archiver = BatchArchiver(table, self.fail_on_data_loss, self.max_file_rows, self.step)
        archiver.open()
        rows = spark.readStream.format("redis_streams").schema("id string").options(**options).load()
        checkpoint = _checkpoint(table.location)
        # Said outright: on most clusters of YARN a plain path is in HDFS, and this one is read here.
        location = f"file:{checkpoint}"
        writer = rows.writeStream.queryName(f"archive {table.location}").option("checkpointLocation", location)
        source = SourceOptions.parse(options)
        small = self.small_files(table, archiver.state) if self.compacts else None

        def archive(frame: DataFrame, batch: int) -> None:
            if self.is_stopping():
                raise StopAsked(f"batch {batch} was not started: the archive was asked to stop")
            context, started_s = frame.sparkSession.sparkContext, time.monotonic()
            offsets = offsets_of(checkpoint, batch)
            rows = archiver.archive(offsets, lambda task: copy(context, source, task))
            if rows is not None:
                wall_s = time.monotonic() - started_s
                self.tell(CommittedBatch(batch, rows, wall_s))
                if small is not None:
                    small.most_s = max(0.0, self._trigger_s() - wall_s)  # what is left until the next batch
                    small.run_if_it_pays()

        writer = writer.foreachBatch(archive)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(self._trigger_s() * 1000)} milliseconds").start()

    def check(self) -> dict[str, str]:
        """Look at everything that can be wrong, without Spark and without writing; return the options of the source."""
        table = self._table()
        self._trigger_s()
        check_grace(self.grace_s)
        table.location.check_writable("archive")
        ArchiveLock.check(table.location)
        if table.is_old():
            raise ConfigurationError(
                f"{table.location} has the format of an older Penstock: run `penstock archive import` once"
            )
        given = self._options(table.location, table.load() if table.exists() else State())
        options = SourceOptions.parse(given)
        options.check_streaming()
        if not options.selection.is_pattern and not options.wait_for_streams:
            client, timeout_s = options.link.client(), options.retry_timeout.total_seconds()
            found = retry(lambda: look(client, options.selection.names), timeout_s, is_stopping=self.is_stopping)
            require(found, client)
        if not has_read_limits():
            raise ConfigurationError(
                "archiving needs Spark 4.2 or newer, which can limit batches: pip install 'pyspark>=4.2'"
            )
        return given

    def _trigger_s(self) -> float:
        return duration_s("--every", self.trigger)

    def small_files(self, table: ArchiveTable, state: State) -> SmallFiles:
        """Return what merges small files between two batches; another process may do so too."""
        return SmallFiles(
            table,
            max_file_rows=self.max_file_rows,
            grace_s=self.grace_s,
            step=self.step,
            state=state,
            is_stopping=self.is_stopping,
            most_s=self._trigger_s(),
        )

    def _options(self, location: Location, state: State) -> dict[str, str]:
        given = {
            "maxRowsPerTrigger": str(self.max_batch_rows),
            **self.options,
            "streams": self.streams,
            "group": self.group,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        ends = {name: end for name in state.streams if (end := state.end(name)) is not None}
        # Without its checkpoint a query continues where the table ends, and notices what is gone since.
        given["startingOffsets"] = starting_after(ends) if ends and last_committed(location) is None else "earliest"
        return given


def _hold(lock: ArchiveLock, query: StreamingQuery) -> None:
    with suppress(Exception):  # however it ends; the caller that waits for it gets the error
        query.awaitTermination()
    lock.give_back()


def starting_after(ends: Mapping[str, Position]) -> str:
    """Return the option startingOffsets for reading on after some positions; other streams begin at their start."""
    return json.dumps(
        {name: f"({at.id}" if at.rank is None else {"id": at.id, "n": at.rank} for name, at in ends.items()}
    )


def copy(context: SparkContext, options: SourceOptions, task: ArchiveTask) -> list[Copied]:
    """Run the task on the executors; return the files, and what was gone.

    The tasks read Redis themselves. Spark plans the batch and keeps its offsets, but the entries do not pass through
    Java, where half of the time would go. Nor need a batch that is run again have the same tasks: so a long one is cut
    for as many cores as there are now.
    """
    log, cores = RedisLog(options), context.defaultParallelism
    shares = retry(lambda: log.partitions(task.pieces, cores), options.retry_timeout.total_seconds())
    found = context.parallelize(shares, max(1, len(shares))).flatMap(Copying(task, options)).collect()
    return list(found)


@dataclass(frozen=True)
class Copying(Shipped):
    """Called by Spark with each share of the task."""

    task: ArchiveTask
    options: SourceOptions

    def __call__(self, share: Sequence[IdRange]) -> list[Copied]:
        """Return the files that hold the share, and what of it was gone."""
        return self.task.copy(self.options, share)


# --- what Spark's checkpoint says of a batch: the ranges of ids that it takes, and where they begin ---


def _checkpoint(location: Location) -> Path:
    """Return where Spark keeps its checkpoint: next to the table, or only for this run if the table is remote.

    The table says by itself how far the archive is. A checkpoint saves a batch that was under way from being planned
    anew, no more.
    """
    if location.local is not None:
        return location.local / _CHECKPOINT
    folder = Path(tempfile.mkdtemp(prefix="penstock-archive-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def offsets_of(checkpoint: Path, batch: int) -> Offsets:
    """Return what a batch takes of each stream."""
    try:
        return Offsets.in_checkpoint(checkpoint, batch)
    except (OSError, ValueError, IndexError, AttributeError, ConfigurationError) as error:
        raise ArchiveDamaged(
            f"cannot read batch {batch} in the checkpoint {checkpoint} ({error}). Remove {checkpoint}: the run "
            "continues where the table ends"
        ) from error


def last_committed(location: Location) -> Offsets | None:
    """Return how far Spark believes the archive to be; None where it has committed nothing."""
    if location.local is None:
        return None
    checkpoint = location.local / _CHECKPOINT
    done = newest_number(checkpoint / "commits")
    return None if done is None else offsets_of(checkpoint, done)
