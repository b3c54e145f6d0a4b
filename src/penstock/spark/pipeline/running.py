"""Runs a pipeline: validates it, starts its query, reports progress, and stops it between two batches."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, text_of
from penstock.events import Emitter, EventName, EventSink
from penstock.runtime.threads import pause
from penstock.shutdown import SignalWatch
from penstock.spark.lake.files import FailPoint, no_fail_point
from penstock.spark.pipeline.batches import Batches, RemoteBatches, allow_batches, refuse_batches
from penstock.spark.pipeline.files import Files
from penstock.spark.pipeline.lineage import LineageRun
from penstock.spark.pipeline.progress import Progress, slow_batch
from penstock.spark.pipeline.spec import DECODE, Pipeline
from penstock.spark.pipeline.status import Driver, Places
from penstock.spark.pipeline.steps import functions_of
from penstock.spark.pipeline.validation import PipelineInvalid, validate
from penstock.spark.runtime.code_shipping import send_modules
from penstock.spark.runtime.errors import (
    StopAsked,
    analyzed,
    is_server_gone,
    is_transient_failure,
    one_line,
    without_query_log,
)
from penstock.spark.runtime.master import is_connect, require_running
from penstock.spark.runtime.restarts import run_with_restarts
from penstock.spark.runtime.versions import has_read_limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("penstock.spark")
_POLL_S = 0.5
_AVAILABLE_NOW = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_QUERY_ID = "sql.streaming.queryId"
# Operators that keep state. A false match only means that a batch is computed again after a crash.
_STATEFUL = re.compile(r"Aggregate|Deduplicate|Distinct|Join|FlatMapGroups|TransformWithState|Limit")
_SLOW_START = "Python worker failed to connect back"  # within the ten seconds that Spark gives it, on a busy machine
_MOST_SLOW_STARTS = 3
_BATCH_FIELDS = ("batch", "rows", "seconds", "rows_per_s", "lag", "eta_s")
_STOP_POLL_S = 0.1
_INITIALIZING = "Initializing"  # Spark's status while it starts a query and its sources
# Spark gives each Python process of a source ten seconds to start, so pipelines start one after the other.
_starting = threading.Lock()
_COLD_START_S = 30.0  # that the first batch of a run may take longer, while Spark loads its code


class PipelineFailed(PenstockError):
    """A batch failed and the pipeline ended; the next run continues with that batch.

    `is_transient` means that the cause may go away by itself, such as a server that restarts.
    """

    def __init__(self, text: str, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.is_transient = is_transient


@dataclass
class Report:
    """The result of one run."""

    batches: int = 0
    rows: int = 0
    is_stopped: bool = False
    restarts: int = 0
    last: Progress | None = None
    alarms: list[str] = field(default_factory=list)


class Run:
    """One run of a pipeline, which starts at its checkpoint."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        *,
        once: bool,
        tell: Callable[[Progress], None] | None = None,
        on_event: EventSink | None = None,
        mark: FailPoint = no_fail_point,
    ) -> None:
        self._pipeline, self._spark, self._once = pipeline, spark, once
        self._tell, self._mark = tell, mark
        self._emit = Emitter(on_event, ",".join(pipeline.source.streams), pipeline.name)
        self._lineage = LineageRun(pipeline, is_continuous=not once)
        self._rules = pipeline.all_rules()
        self._places = Places(pipeline.checkpoint)
        self._batches: Batches | None = None
        self._is_stopping = False
        self._last_batch = self._slow = -1
        self._is_remote = is_connect(spark)
        self.report = Report()

    def stop(self) -> None:
        """Stop after the current batch; may be called from a signal handler or another thread."""
        self._is_stopping = True
        if self._batches is not None:
            self._batches.stop()
        elif self._is_remote:
            refuse_batches(self._places)

    def run(self) -> Report:
        """Process everything available (once), or run until stop(), SIGTERM or SIGINT.

        Guarantees: each sink that writes repeated batches once holds a batch once, however this process ends.

        Raises:
            PipelineInvalid: nothing was started.
            PipelineBusy: another driver uses the checkpoint, and nothing was started.
            SparkStopped: the session was stopped before.
            PipelineFailed: a batch failed.

        """
        require_running(self._spark)
        send_modules(self._spark, functions_of(self._pipeline.steps))
        with _starting:
            rows = self._validated()
        if self._is_remote:
            allow_batches(self._places)  # an earlier run may have been stopped
        elif (files := Files(self._spark)).local(self._pipeline.checkpoint) is None:
            # A path without a scheme is in Spark's default file system: on YARN, that is usually HDFS.
            self._places = Places(files.qualified(self._pipeline.checkpoint))
        unsubscribe = SignalWatch.subscribe(self.stop)
        try:
            with self._alone() as driver, without_query_log():  # it would show values that errors mask
                self._run_reported(rows)
                if driver is not None:
                    driver.end("stopped" if self.report.is_stopped else "done")
        finally:
            unsubscribe()
        return self.report

    def _validated(self) -> DataFrame:
        for left in reversed(range(_MOST_SLOW_STARTS)):
            try:
                return validate(self._pipeline, self._spark, self._places.starting())
            except PipelineInvalid as error:
                if not left or _SLOW_START not in str(error):
                    raise
        raise AssertionError("unreachable")

    def _run_reported(self, rows: DataFrame) -> None:
        """Run to the end, and report it as events and lineage."""
        self._lineage.emit("START")
        try:
            self._run_with_restarts(rows)
        except BaseException as error:
            text = text_of(error, self._masked)
            self._lineage.emit("FAIL", self.report.rows, text)
            self._emit(EventName.FAILED, error=text)
            raise
        self._lineage.emit("COMPLETE", self.report.rows)
        self._emit(EventName.STOPPED, reason="stopped" if self.report.is_stopped else "done")

    def _run_with_restarts(self, rows: DataFrame) -> None:
        """Run to the end, and restart after a pause: a continuous run after any transient failure.

        A run until everything is read restarts only if Spark gave up on a Python worker that was slow to start.
        """

        def attempt() -> None:
            with _starting:
                query = self._started(rows)
            self._follow(query)

        is_over = run_with_restarts(
            attempt,
            batches=lambda: self.report.batches,
            most=self._most_restarts,
            is_stopping=lambda: self._is_stopping,
            tell=self._restarting,
        )
        self.report.is_stopped = self.report.is_stopped or not is_over

    def _most_restarts(self, error: PenstockError) -> int:
        if not (isinstance(error, PipelineFailed) and error.is_transient):
            return 0
        if not self._once:
            return self._pipeline.restarts
        return min(self._pipeline.restarts, _MOST_SLOW_STARTS) if _SLOW_START in str(error.__cause__) else 0

    def _restarting(self, error: PenstockError, pause_s: float) -> None:
        self._emit(EventName.TRYING_AGAIN, error=str(error), pause_s=pause_s)
        self.report.restarts += 1

    def _alone(self) -> AbstractContextManager[Driver | None]:
        folder = self._places.local()  # elsewhere, a second driver fails to create the files of Spark's checkpoint
        return nullcontext() if folder is None else Driver(folder, self._masked).alone()

    def _masked(self, error: BaseException) -> str:
        return self._pipeline.masked(str(error))

    def _started(self, rows: DataFrame) -> StreamingQuery:
        """Start the query; return when its sources have started, or it has ended."""
        query = self._start(rows)
        while not self._is_remote and query.isActive and query.status["message"].startswith(_INITIALIZING):
            pause(_STOP_POLL_S)
        return query

    def _start(self, rows: DataFrame) -> StreamingQuery:
        writer = rows.writeStream.foreachBatch(self._made_batches(rows)).outputMode(self._pipeline.output_mode)
        writer = writer.queryName(self._pipeline.name).option("checkpointLocation", self._places.spark)
        if self._once:
            if not has_read_limits():  # otherwise a run that repeats a batch after a crash would end with it
                self._spark.conf.set(_AVAILABLE_NOW, "true")
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(self._pipeline.trigger_s * 1000)} milliseconds").start()

    def _made_batches(self, rows: DataFrame) -> Callable[[DataFrame, int], None]:
        if self._is_remote:
            return RemoteBatches(self._pipeline)
        plan = analyzed(rows).toString()
        self._batches = Batches.of(
            self._pipeline,
            self._spark,
            self._places,
            self._query_id,
            is_stateful=_STATEFUL.search(plan) is not None,
            mark=self._mark,
        )
        if self._is_stopping:
            self._batches.stop()
        return self._batches

    def _query_id(self) -> str:
        # Called in the thread of the query, where Spark sets this property.
        found = self._spark.sparkContext.getLocalProperty(_QUERY_ID)
        if found is None:
            raise PenstockError(f"Spark did not provide the id of the query ({_QUERY_ID})")
        return str(found)

    # --- while it runs ---

    def _follow(self, query: StreamingQuery) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        is_gone = False
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # its own docs show 0.5
                self._poll(query)
                if self._is_stopping and not query.status["isTriggerActive"]:
                    query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            is_gone = is_server_gone(error)
            if not (self._is_stopping and StopAsked.__name__ in str(error)):
                raise self._failure(error) from error
        finally:
            if not is_gone:
                self._end(query)
        self.report.is_stopped = self._is_stopping

    def _end(self, query: StreamingQuery) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with suppress(PySparkException, Py4JError, OSError):  # Java may be gone
            if query.isActive:
                query.stop()
            self._poll(query)

    def _failure(self, error: Exception) -> PipelineFailed:
        reason = one_line(error, self._pipeline.masked).rstrip(". ")
        why = f"pipeline {self._pipeline.name!r} failed: {reason}. "
        if self._is_stopping:
            return PipelineFailed(
                f"{why}It had been asked to stop: send the signal to this process only, not to its JVM "
                "(systemd: KillMode=mixed). The next run continues with the same batch"
            )
        is_transient = not is_server_gone(error) and is_transient_failure(str(error))
        hint = "Fix the cause and run it again: it continues with the same batch"
        return PipelineFailed(f"{why}{hint}", is_transient=is_transient)

    def _poll(self, query: StreamingQuery) -> None:
        for text in self._new_progress(query):
            plain: Mapping[str, Any] = json.loads(text)  # PySpark's objects lack some fields
            if plain["batchId"] <= self._last_batch or not plain["durationMs"].get("addBatch"):
                continue
            self._last_batch = plain["batchId"]
            trigger_s = 0.0 if self._once else self._pipeline.trigger_s
            self._take(Progress.of(plain, self.report.last, rules=self._rules, trigger_s=trigger_s))
        self._check_slow_batch()

    def _new_progress(self, query: StreamingQuery) -> list[str]:
        if self._is_remote:
            return [each.json for each in query.recentProgress if each.batchId > self._last_batch]
        # From Java: PySpark would fetch and parse the last hundred batches, twice a second.
        recent = query._jsq.recentProgress()  # noqa: SLF001 - PySpark has no other access
        new = []
        for number in reversed(range(len(recent))):
            if recent[number].batchId() <= self._last_batch:
                break
            new.append(str(recent[number].json()))
        return new[::-1]

    def _check_slow_batch(self) -> None:
        """Raise an alarm while a batch is taking too long: it may never end."""
        under_way = None if self._batches is None else self._batches.under_way
        if under_way is None or self._once or not self._pipeline.trigger_s:
            return
        number, begun = under_way
        seconds = time.monotonic() - begun
        limit_s = self._pipeline.trigger_s + (0.0 if self.report.batches else _COLD_START_S)
        if seconds > limit_s and number > self._slow:
            self._slow = number
            self._alarm(slow_batch(number, seconds, self._pipeline.trigger_s, is_over=False))

    def _take(self, progress: Progress) -> None:
        report = self.report
        is_exempt = self._once or not report.batches or self._slow == progress.batch
        report.batches, report.rows, report.last = report.batches + 1, report.rows + progress.rows, progress
        for alarm in progress.alarms(self._pipeline.max_lag, 0.0 if is_exempt else self._pipeline.trigger_s):
            self._alarm(alarm)
        self._places.note(progress)
        fields = progress.as_dict()
        self._emit(EventName.BATCH_COMMITTED, **{name: fields[name] for name in _BATCH_FIELDS})
        actions = {DECODE: "dead_letter", **{rule.label: rule.action for rule in self._rules}}
        for rule, count in progress.broken.items():
            self._emit(EventName.RULE_BROKEN, rule=rule, action=actions[rule], count=count)
            if actions[rule] == "warn":
                self._alarm(f"batch {progress.batch}: {count:,} rows violate the rule {rule!r}")
        if self._tell is not None:
            self._tell(progress)

    def _alarm(self, text: str) -> None:
        self.report.alarms.append(text)
        logger.warning("pipeline %s: %s", self._pipeline.name, text)
