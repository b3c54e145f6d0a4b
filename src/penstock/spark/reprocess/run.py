"""One reprocessing: selects, counts, runs, sums up. It keeps no state of its own: what has a result is done.

The messages are a DataFrame whose rows are the same whenever it is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from penstock.errors import BackendRefused, ConfigurationError
from penstock.keys import StreamKeys
from penstock.policy import Reason
from penstock.runtime.threads import pause
from penstock.spark.archive.file_reader import check_on_executors
from penstock.spark.archive.read import check_order, chosen, files_between, read
from penstock.spark.archive.table import load_state
from penstock.spark.lake.files import Location, check_writable
from penstock.spark.payload.opening import REFUSED, opened_rows, without_keys
from penstock.spark.pipeline.steps import imported
from penstock.spark.reprocess.store import ReprocessResults, StuckNotes, marked, request_stop
from penstock.spark.reprocess.task import OUTCOME_DDL, PURGED_DDL, PurgeTask, ReprocessTask, Work
from penstock.spark.runtime.code_shipping import send_modules
from penstock.spark.runtime.errors import filtered, normalised_sql, one_line_errors
from penstock.spark.runtime.link import Link
from penstock.spark.runtime.master import enough_tasks, is_connect, is_local, require_running
from penstock.spark.runtime.option_values import Options
from penstock.spark.source.catalogue import newest_dead_letter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a task needs of a message; `letter` is the id of the dead letter, null for an archived message.
COLUMNS = ("stream", "id", "data", "key", "headers", "message_id", "kind", "letter", REFUSED)
_KIND = "coalesce(cast(fields['kind'] as string), headers['kind']) as kind"
_ROWS_A_TASK = 10_000
_MOST_FAILURES = 50
_PROBE = "penstock-probe"
# How long Spark lets a cancelled task finish before it kills the Python worker, and the time that this itself takes.
_KILL_TIMEOUT_S, _KILL_TAKES_S = 30, 5
_STOP_EVERY_S = 0.5
CONF = {"spark.python.task.killTimeout": f"{_KILL_TIMEOUT_S}s"}


class Selection(Protocol):
    """Messages to be processed again."""

    @property
    def where(self) -> str | None:
        """The condition of the user, if there is one."""

    @property
    def keeps_failures(self) -> bool:
        """Whether failures are saved as results, because nothing else records them."""

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark."""

    def check_files(self, spark: SparkSession) -> None:
        """Raise ArchiveDamaged for files that must not be read."""

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the messages, with the columns above."""


@dataclass(frozen=True)
class Archived:
    """Messages of an archive, from a time on and before another one (in milliseconds).

    `options` are those of the source: with `url` and `protectionFile`, payloads are opened.
    """

    root: str | Path
    stream: str
    low: int | None = None
    high: int | None = None
    where: str | None = None
    options: Mapping[str, str] | None = field(default=None, repr=False)
    keeps_failures = True

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark."""
        check_order(self.low, self.high)
        chosen(load_state(self.root), self.stream, is_hot=False)

    def check_files(self, spark: SparkSession) -> None:
        """Raise ArchiveDamaged if a file is not what was written; before any message is handled."""
        found = files_between(load_state(self.root), [self.stream], self.low, self.high)
        check_on_executors(spark, Location.of(self.root, what="archive"), found)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the messages."""
        link = None if self.options is None else Link.from_options(Options(self.options))
        rows = opened_rows(read(spark, self.root, self.stream, self.low, self.high), link)
        return _filtered(rows, self.where).selectExpr(*COLUMNS[:6], _KIND, "cast(null as string) as letter", REFUSED)


@dataclass(frozen=True)
class SelectedDeadLetters:
    """Dead letters of a stream, those of one reason if one is given; those that come later are not among them."""

    options: Mapping[str, str] = field(repr=False)
    stream: str = ""
    reason: str | None = None
    where: str | None = None
    keeps_failures = False  # they stay dead letters

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark."""
        if self.reason is not None and self.reason not in set(Reason):
            raise ConfigurationError(f"--reason {self.reason!r} is not a reason; available: {', '.join(Reason)}")
        assert self.last_id

    def check_files(self, spark: SparkSession) -> None:
        """Do nothing: they are in Redis."""

    @property
    def link(self) -> Link:
        """The way to Redis."""
        return Link.from_options(Options(self.options))

    @property
    def key(self) -> str:
        """The stream of the dead letters."""
        return StreamKeys(self.stream).default_dead_letters()

    @cached_property
    def last_id(self) -> str:
        """The id of the newest dead letter when this was first asked for: what comes later is not meant."""
        return newest_dead_letter(self.link.client(), self.stream)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the dead letters as the messages that they were."""
        options = {
            **without_keys(self.options),
            "streams": self.stream,
            "view": "dead_letters",
            "failOnDataLoss": "false",
        }
        options |= {"endingOffsets": self.last_id, "maxRowsPerPartition": str(_ROWS_A_TASK)}
        rows = spark.read.format("redis_streams").options(**options).load()
        found = _filtered(opened_rows(rows, self.link, self.stream), self.where)
        if self.reason is not None:
            found = found.where(f"reason = '{self.reason}'")
        return found.selectExpr(
            "coalesce(source_stream, stream) as stream", "coalesce(source_id, id) as id", *COLUMNS[2:6], _KIND,
            "id as letter", REFUSED,
        )  # fmt: skip


def _filtered(rows: DataFrame, condition: str | None) -> DataFrame:
    return rows if condition is None else filtered(rows, condition)


@dataclass(frozen=True)
class FailedMessages:
    """Messages that failed in the same way."""

    error: str
    text: str
    count: int
    example: str  # id of one of them


@dataclass(frozen=True)
class Summary:
    """What became of all messages; `earlier` ones had a result before: of another run, or of a task that was killed."""

    done: int = 0
    failed: int = 0
    earlier: int = 0
    earlier_failed: int = 0
    purged: int = 0
    failures: tuple[FailedMessages, ...] = ()


class Reprocess:
    """A handler over a selection of messages."""

    def __init__(self, selection: Selection, work: Work, *, purge: bool = False) -> None:
        if purge and not isinstance(selection, SelectedDeadLetters):
            raise ConfigurationError("--purge applies only to --dead-letters: archived messages are not deleted")
        self._selection, self._work, self._purges = selection, work, purge
        self._is_stopping, self._is_over = threading.Event(), threading.Event()
        self._mark: str | None = None

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark, and without writing."""
        imported("--handler", self._work.handler)
        self._selection.check()

    def check_results(self) -> None:
        """Raise ConfigurationError if results cannot be kept; a back-end may make its tables now."""
        results = self._work.results
        if results.provider == "fs":
            check_writable(Path(results.root), "--results")
        try:
            store = ReprocessResults(results)
            try:
                store.find([_PROBE])
            finally:
                store.close()
        except BackendRefused as error:
            raise ConfigurationError(f"--results: {error}") from error

    def count(self, spark: SparkSession) -> int:
        """Return how many messages are selected."""
        require_running(spark)
        where = self._selection.where
        with nullcontext() if where is None else one_line_errors(where):
            return self._selection.rows(spark).count()

    def run(self, spark: SparkSession, handled: Any = None) -> Summary:
        """Handle every message that has no result; return what became of all.

        `handled` is an accumulator of their number.

        Guarantees: however often it is killed and run again, each message has one result in the end, or stays a dead
        letter.
        """
        try:
            require_running(spark)
            send_modules(spark, [self._work.handler])
            self._selection.check_files(spark)
            is_here = not is_connect(spark) and is_local(spark.sparkContext.master)
            with marked(self._work.results, is_here=is_here) as self._mark:
                task = ReprocessTask(self._work, self._selection.keeps_failures, handled, self._mark, self._stuck())
                try:
                    return self._handled(spark, task)
                finally:
                    if self._is_stopping.is_set():
                        _wait_for_tasks(spark)
        finally:
            self._is_over.set()

    def stop(self, spark: SparkSession) -> None:
        """End `run` early, from another thread, by cancelling all jobs of the session; return when it has ended.

        Tasks finish the messages that they are handling, and save their results.
        """
        self._is_stopping.set()
        while not self._is_over.is_set():  # the next job of `run` may only start after this one was cancelled
            if self._mark is not None:
                request_stop(self._mark)
            if is_connect(spark):
                spark.interruptAll()
            else:
                spark.sparkContext.cancelAllJobs()
            self._is_over.wait(_STOP_EVERY_S)

    def _handled(self, spark: SparkSession, task: ReprocessTask) -> Summary:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        outcomes = _spread(self._selection.rows(spark)).mapInArrow(task, OUTCOME_DDL)
        sums = Observation()
        # Counted on the way: a second query over the outcomes would run the handler a second time.
        is_earlier = ~f.col("is_new")
        observed = outcomes.observe(
            sums,
            f.count_if("is_done").alias("done"),
            f.count_if(~f.col("is_done")).alias("failed"),
            f.count_if(is_earlier).alias("earlier"),
            f.count_if(is_earlier & ~f.col("is_done")).alias("earlier_failed"),
        )
        failed = observed.where(~f.col("is_done")).selectExpr("error", f"{normalised_sql('text')} as text", "id")
        grouped = failed.groupBy("error", "text").agg(f.count("*").alias("n"), f.min("id"))
        rows = grouped.orderBy(f.desc("n"), "error", "text").limit(_MOST_FAILURES).collect()
        counts = {name: int(count) for name, count in sums.get.items()}
        purged = self._purge(spark) if self._purges else 0
        return Summary(**counts, purged=purged, failures=tuple(FailedMessages(*row) for row in rows))

    def _stuck(self) -> StuckNotes | None:
        selection = self._selection
        if self._work.timeout is None or not isinstance(selection, SelectedDeadLetters):
            return None
        return StuckNotes(selection.link, selection.key, uuid4().hex)

    def _purge(self, spark: SparkSession) -> int:
        selection = self._selection
        assert isinstance(selection, SelectedDeadLetters)
        task = PurgeTask(selection.link, selection.key, self._work.results, self._work.name)
        rows = selection.rows(spark).select("stream", "id", "message_id", "letter")
        found = rows.mapInArrow(task, PURGED_DDL).groupBy().sum("purged").collect()
        return int(found[0][0] or 0)


def _wait_for_tasks(spark: SparkSession) -> None:
    """Wait until no task runs any more, or as long as Spark lets cancelled tasks run.

    A cancelled job ends before its tasks do. If the session ended then, it would kill the Python workers in the middle
    of a handler. On Spark Connect they belong to the server, which stays.
    """
    if is_connect(spark):
        return
    # The status tracker learns of a task that has just begun up to a second later.
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()  # noqa: SLF001 - the only way to it
    deadline = time.monotonic() + _KILL_TIMEOUT_S + _KILL_TAKES_S
    while time.monotonic() < deadline and _running_tasks(scheduler):
        pause(_STOP_EVERY_S)


def _running_tasks(scheduler: Any) -> int:
    counts = scheduler.runningTasksByExecutors().valuesIterator()
    total = 0
    while counts.hasNext():
        total += counts.next()
    return total


def _spread(rows: DataFrame) -> DataFrame:
    """Return the rows in enough partitions for all cores: a handler costs more than reading what it is given."""
    spark = rows.sparkSession
    if not is_connect(spark) and rows.rdd.getNumPartitions() >= spark.sparkContext.defaultParallelism:
        return rows
    return rows.repartition(enough_tasks(spark))
