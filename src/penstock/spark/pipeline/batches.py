"""Writes each batch to all sinks, to each one once, in an order that survives a crash at any point."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.lake.files import FailPoint, no_fail_point
from penstock.spark.pipeline.dead_letters import query_id
from penstock.spark.pipeline.files import BatchKey, files_of
from penstock.spark.pipeline.plan import Planner, dead_letter_config
from penstock.spark.pipeline.rejected_rows import RejectedRows
from penstock.spark.pipeline.sink_options import Console, Delta, Iceberg, Jdbc, Parquet, Postgres, Results, Sink
from penstock.spark.pipeline.sinks.console import ConsoleWriter
from penstock.spark.pipeline.sinks.delta import DeltaSparkWriter, DeltaWriter, uses_jars
from penstock.spark.pipeline.sinks.iceberg import IcebergSparkWriter, IcebergWriter, is_for_jars
from penstock.spark.pipeline.sinks.jdbc import JdbcWriter
from penstock.spark.pipeline.sinks.parquet import ParquetWriter
from penstock.spark.pipeline.sinks.postgres import PostgresWriter
from penstock.spark.pipeline.sinks.redis_streams import RedisStreamsWriter
from penstock.spark.pipeline.sinks.results import ResultsWriter
from penstock.spark.pipeline.sinks.writer import Writer
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.pipeline.staging import Staging, recipe_of
from penstock.spark.pipeline.status import Places
from penstock.spark.runtime.errors import StopAsked
from penstock.spark.runtime.master import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("penstock.spark")


def writer_of(sink: Sink, pipeline: Pipeline, spark: SparkSession) -> Writer:
    """Return the writer for a sink; raise ConfigurationError if the session does not support the sink."""
    if is_connect(spark) and (isinstance(sink, Jdbc) or getattr(sink, "library", None) == "spark"):
        raise ConfigurationError(
            "this sink needs the driver's JVM, which Spark Connect does not expose: use the sink postgres, a "
            "table without library = 'spark', or a --master such as spark://host:7077"
        )
    if isinstance(sink, Parquet | Delta | Iceberg):
        return _of_files(sink, spark)
    if isinstance(sink, Postgres):
        return PostgresWriter(sink)
    if isinstance(sink, Jdbc):
        return JdbcWriter(sink, spark)
    if isinstance(sink, Results):
        return ResultsWriter(sink)
    if isinstance(sink, Console):
        return ConsoleWriter(sink)
    return RedisStreamsWriter(sink, pipeline.source)


def _of_files(sink: Parquet | Delta | Iceberg, spark: SparkSession) -> Writer:
    files = files_of(spark)
    if isinstance(sink, Parquet):
        return ParquetWriter(sink, files)
    if isinstance(sink, Iceberg):
        return IcebergSparkWriter(sink, spark) if is_for_jars(sink, spark) else IcebergWriter(sink, files)
    return DeltaSparkWriter(sink, spark) if uses_jars(sink, spark) else DeltaWriter(sink, files)


class StageOutdated(PenstockError):
    """A batch that some sinks have cannot be computed again for the others."""


@dataclass(frozen=True)
class Route:
    """How rows reach a sink: the step that they come from, the condition that selects them, and the writer."""

    sink: str
    writer: Writer
    step: int
    where: str | None = None

    def rows(self, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Return the rows for the sink."""
        found = frames[self.step]
        return found if self.where is None else found.where(self.where)


class Batches:
    """Writes the batches of one query; Spark calls it with each batch.

    A single sink that makes a batch visible in one step gets the rows directly. Otherwise they are staged first, also
    if a sink rejects some of them. Steps after the trunk are computed from the staged rows, and staged as well.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        routes: Sequence[Route],
        staging: Callable[[int], Staging],
        query: Callable[[], str],
        *,
        is_stateful: bool,
        mark: FailPoint = no_fail_point,
    ) -> None:
        """`staging` returns the staged batches of a step, `query` the id of the running query."""
        self._pipeline, self._routes, self._query = pipeline, routes, query
        self._trunk = pipeline.trunk
        self._staging = staging(self._trunk)
        self._branches = {each.step: staging(each.step) for each in routes if each.step != self._trunk}
        self._rejected = RejectedRows(dead_letter_config(pipeline))
        self._is_stateful, self._mark = is_stateful, mark
        self._stop = threading.Event()
        self._may_have_staged = True  # a batch that was staged because a sink rejected rows
        self.under_way: tuple[int, float] | None = None  # the batch, and when it began

    @classmethod
    def of(
        cls, pipeline: Pipeline, spark: SparkSession, places: Places, query: Callable[[], str], **given: Any
    ) -> Batches:
        """Return the batches of a pipeline, with the writers of its sinks on a session."""
        steps, files = pipeline.outputs(), files_of(spark)
        routes = [
            Route(sink.name, writer_of(sink, pipeline, spark), steps[sink.name], sink.where) for sink in pipeline.sinks
        ]

        def staging(step: int) -> Staging:
            return Staging(places.staging_of(step, pipeline.trunk), files, recipe_of(pipeline, step))

        return cls(pipeline, routes, staging, query, **given)

    def stop(self) -> None:
        """Let the current batch finish, and start no other."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether stop() was called."""
        return self._stop.is_set()

    @property
    def is_staged(self) -> bool:
        """Whether batches are staged before they are written."""
        return (
            len(self._routes) > 1 or bool(self._branches) or not all(route.writer.is_atomic for route in self._routes)
        )

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch."""
        if self._stop.is_set():
            raise StopAsked(f"batch {number} was not started: the pipeline was asked to stop")
        key = BatchKey(self._query(), number)
        self.under_way = (number, time.monotonic())
        try:
            self._write(rows, key)
        finally:
            self.under_way = None

    def _write(self, rows: DataFrame, key: BatchKey) -> None:
        self._mark("begun")
        is_repeated = self._staging.has(rows, key) or self._is_outdated(rows, key)
        is_staged = self.is_staged or is_repeated
        if is_staged:
            rows = self._staged(rows, key)
        elif self._may_have_staged:
            self._staging.forget_before(rows, key)
            self._may_have_staged = False
        frames = {self._trunk: rows}
        frames |= {step: self._branch(step, staging, rows, key) for step, staging in self._branches.items()}
        for route in self._routes:
            given = route.rows(frames)
            left = self._rejected.left(given, key, route.sink) if is_repeated else given
            if not route.writer.is_atomic:
                self._staging.begin(route.sink, key)
            if not self._put(route, left, key, unstaged=None if is_staged else rows):
                logger.info("sink %s already has batch %d", route.sink, key.number)
                if self._is_stateful and not is_staged:
                    _compute(rows)
        self._mark("done")

    def _is_outdated(self, rows: DataFrame, key: BatchKey) -> bool:
        """Return whether other steps have staged the batch, so that it must be computed again.

        Raises: StageOutdated if a sink has it already.
        """
        if not (self.is_staged or self._may_have_staged) or not self._staging.is_outdated(rows, key):
            return False
        self._check_new(self._routes, key)
        for staging in self._branches.values():
            staging.forget_all(key)
        return True

    def _check_new(self, routes: Iterable[Route], key: BatchKey) -> None:
        """Raise StageOutdated if one of the sinks has the batch, or may have part of it."""
        for route in routes:
            if (route.writer.is_atomic or self._staging.has_begun(route.sink, key)) and route.writer.has(key):
                raise StageOutdated(
                    f"the steps have changed, and sink {route.sink!r} already has rows of batch {key.number} "
                    "from the old steps, while other sinks do not: restore the old steps, run the pipeline "
                    "once, and then change them; or start over with `penstock pipeline reset`"
                )

    def _put(self, route: Route, rows: DataFrame, key: BatchKey, *, unstaged: DataFrame | None) -> bool:
        """Write the rows that a sink accepts, dead-letter the others, and return whether the batch was new.

        `unstaged` are the rows of the trunk if they are not staged yet. If the sink rejects some, all of the trunk is
        staged: a sink that is added before the batch is repeated may need rows that this one does not get.
        """
        writer = route.writer
        try:
            return writer.write(rows, key, self._mark)
        except Exception as error:
            if not writer.is_refusal(error):
                raise
            self._may_have_staged = True
            if unstaged is not None:
                rows = route.rows({self._trunk: self._staged(unstaged, key)})
            left = self._rejected.without_refused(rows, key, route.sink, writer)
            if left is None:
                raise
        self._mark("refused")
        return writer.write(left, key, self._mark)

    def _branch(self, step: int, staging: Staging, rows: DataFrame, key: BatchKey) -> DataFrame:
        """Return the rows of a step after the trunk; they are computed once."""
        made = Planner(rows.sparkSession, self._pipeline).branch(rows, step)
        if staging.is_outdated(made, key):
            self._check_new((route for route in self._routes if route.step == step), key)
        staging.forget_before(made, key)
        if not staging.has(made, key):
            staging.put(made, key, self._mark)
        return staging.get(made, key)

    def _staged(self, rows: DataFrame, key: BatchKey) -> DataFrame:
        self._staging.forget_before(rows, key)
        if not self._staging.has(rows, key):
            self._staging.put(rows, key, self._mark)
        elif self._is_stateful:
            _compute(rows)
        return self._staging.get(rows, key)


def _compute(rows: DataFrame) -> None:
    # Spark requires each run to commit the state of its batches, even if the rows are already written.
    rows.write.format("noop").mode("overwrite").save()


# --- through Spark Connect ---

_STOP = "stop"


@dataclass(frozen=True)
class RemoteBatches:
    """Writes the batches of a pipeline on a Spark Connect server; it is pickled to get there.

    It runs in a Python process that the server starts, with its own session, and the client can reach it only through
    files. So the checkpoint and all other files of a pipeline are on a disk that the client, the server and the
    executors share under the same path.
    """

    pipeline: Pipeline

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch."""
        places = Places(self.pipeline.checkpoint)
        if _stop_file(places).exists():
            raise StopAsked(f"batch {number} was not started: the pipeline was asked to stop")
        # Here, whether the plan keeps state is unknown; computing a batch once more does no harm.
        batches = Batches.of(
            self.pipeline, rows.sparkSession, places, lambda: query_id(places.checkpoint), is_stateful=True
        )
        batches(rows, number)


def refuse_batches(places: Places) -> None:
    """Let the current batch finish, and start no other."""
    _stop_file(places).touch()


def allow_batches(places: Places) -> None:
    """Allow batches to start."""
    _stop_file(places).unlink(missing_ok=True)


def _stop_file(places: Places) -> Path:
    folder = places.local()
    if folder is None:
        raise ConfigurationError(f"checkpoint {places.checkpoint} is not on a disk that this process can access")
    return folder / _STOP
