"""An archive run and a pipeline over one stream, side by side on a cluster; run by a driver that is killed, and again.

Their tasks stop at a gate while there is a key `gate:armed` in the Redis of the gates, when they are first tried; and
the driver itself, in the middle of its commits, while there is a key `gate:driver`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import redis

from penstock.spark.archive import ArchiveRun
from penstock.spark.archive import run as archive_run
from penstock.spark.pipeline import Delta, Function, Parquet, Pipeline, Source, Sql
from penstock.spark.pipeline.running import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ARMED, REACHED, OPEN, DRIVER = "gate:armed", "gate:reached", "gate:open", "gate:driver"
GATES = "GATES"  # variable of the environment: the socket of the Redis that has the gates
_MOST_ROWS = 100


def pipeline_of(place: str, url: str) -> Pipeline:
    """Declares the pipeline."""
    return Pipeline(
        name="lake",
        source=Source(url=url, streams=("orders",), schema="n bigint", max_rows_per_batch=_MOST_ROWS),
        steps=(Sql("SELECT n FROM input"), Function(f"{__name__}:gated")),
        sinks=(Parquet(f"{place}/table"), Delta(f"{place}/delta")),
        checkpoint=f"{place}/checkpoint",
        trigger="100ms",
    )


def archive_of(place: str, url: str, step: Callable[[str], None]) -> ArchiveRun:
    """Declares the archive run."""
    return ArchiveRun(
        f"{place}/cold", "orders", {"url": url}, max_batch_rows=_MOST_ROWS, trigger="100 milliseconds", step=step
    )


def gated(rows: DataFrame) -> DataFrame:
    """Lets rows through, behind the gate: the step of the pipeline."""
    wait = _gate(os.environ[GATES], "pipeline")

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            wait()
            yield batch

    return rows.mapInArrow(step, rows.schema)


def gate_archive() -> None:
    """Makes the tasks of the archive stop at the gate when their files are written."""
    copy, wait = archive_run.copy, _gate(os.environ[GATES], "archive")

    class Gated:  # local, and therefore pickled by value
        def __init__(self, task: Any) -> None:
            self.task, self.pieces = task, task.pieces

        def copy(self, options: Any, share: Any) -> Any:
            made = self.task.copy(options, share)
            wait()
            return made

    archive_run.copy = lambda context, options, task: copy(context, options, Gated(task))  # type: ignore[arg-type]


def _gate(unix_socket: str, name: str) -> Callable[[], None]:
    def wait() -> None:
        import redis
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        with redis.Redis(unix_socket_path=unix_socket) as client:
            if context.attemptNumber() == 0 and client.exists("gate:armed"):
                client.sadd("gate:reached", name)
                client.blpop(["gate:open"], timeout=120)

    return wait


def pausing(name: str, at: str) -> Callable[[str], None]:
    """Returns a step that stops for good at the gate of the driver; the process is killed then."""

    def step(done: str) -> None:
        if done == at:
            with redis.Redis(unix_socket_path=os.environ[GATES]) as client:
                if client.exists(DRIVER):
                    client.sadd(REACHED, name)
                    signal.pause()

    return step


def run(spark: SparkSession, place: str, url: str) -> None:
    """Runs both until the process is killed."""
    gate_archive()
    query = archive_of(place, url, pausing("archive", "placed")).start(spark)
    lake = Run(pipeline_of(place, url), spark, once=False, mark=pausing("pipeline", "delta written"))
    threading.Thread(target=lake.run, daemon=True).start()
    query.awaitTermination()


def finish(spark: SparkSession, place: str, url: str) -> None:
    """Runs both once more, up to the last entry."""
    from tests.spark.end_to_end.queries import finished

    finished(archive_of(place, url, lambda _: None).start(spark, once=True))
    Run(pipeline_of(place, url), spark, once=True).run()
