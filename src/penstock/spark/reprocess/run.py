"""One reprocessing: counts, runs, sums up. It keeps no state of its own: what has a result is done."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.errors import BackendRefused, ConfigurationError
from penstock.spark.lake.files import check_writable
from penstock.spark.pipeline.steps import imported
from penstock.spark.reprocess.selection import SelectedDeadLetters, Selection
from penstock.spark.reprocess.store import ReprocessResults, StuckNotes, marked
from penstock.spark.reprocess.task import OUTCOME_DDL, PURGED_DDL, PurgeTask, ReprocessTask, Work
from penstock.spark.runtime.errors import normalised_sql, one_line_errors
from penstock.spark.runtime.master import enough_tasks, is_connect
from penstock.spark.runtime.user_modules import send_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_FAILURES = 50
_PROBE = "penstock-probe"


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
            raise ConfigurationError("--purge deletes dead letters: an archive keeps what it has")
        self._selection, self._work, self._purges = selection, work, purge

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
        where = self._selection.where
        with nullcontext() if where is None else one_line_errors(where):
            return self._selection.rows(spark).count()

    def run(self, spark: SparkSession, told: Any = None) -> Summary:
        """Handle every message that has no result; return what became of all. `told` is an accumulator of their number.

        Guarantees: however often it is killed and run again, each message has one result in the end, or stays a dead
        letter.
        """
        send_modules(spark, [self._work.handler])
        self._selection.check_files(spark)
        with marked(self._work.results) as mark:
            task = ReprocessTask(self._work, self._selection.keeps_failures, told, mark, self._stuck())
            return self._handled(spark, task)

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


def _spread(rows: DataFrame) -> DataFrame:
    """Return the rows in enough partitions for all cores: a handler costs more than reading what it is given."""
    spark = rows.sparkSession
    if not is_connect(spark) and rows.rdd.getNumPartitions() >= spark.sparkContext.defaultParallelism:
        return rows
    return rows.repartition(enough_tasks(spark))
