"""An archive run and a pipeline over one stream, side by side on a cluster; run by drivers that are killed, and again.

Their tasks stop at a gate while there is a key `gate:armed` in the Redis of the gates, when they are first tried.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.archive import ArchiveRun
from penstock.spark.archive import run as archive_run
from penstock.spark.pipeline import Delta, Function, Parquet, Pipeline, Source, Sql
from penstock.spark.pipeline.running import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ARMED, REACHED, OPEN = "gate:armed", "gate:reached", "gate:open"
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


def say(line: str) -> None:
    """Tells the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def pausing(name: str, at: str, times: int) -> Callable[[str], None]:
    """Returns a step that stops for good when something was done so many times; the process is killed then."""
    seen: list[str] = []

    def step(done: str) -> None:
        seen.append(done)
        if done == at and seen.count(at) == times:
            say(f"reached {name}")
            signal.pause()

    return step


def run(spark: SparkSession, place: str, url: str, *, is_killed: bool) -> None:
    """Runs both until they stop for good, or until there is a file `finish`: then up to the last entry."""
    gate_archive()
    nothing: Callable[[str], None] = lambda _: None  # noqa: E731
    step = pausing("archive", "placed", 2) if is_killed else nothing
    mark = pausing("pipeline", "delta written", 2) if is_killed else nothing
    archive, pipeline = archive_of(place, url, step), pipeline_of(place, url)
    query = archive.start(spark)
    lake = Run(pipeline, spark, once=False, mark=mark)
    thread = threading.Thread(target=lake.run)
    thread.start()
    say("running")
    while not (Path(place) / "finish").exists():
        if not query.isActive or not thread.is_alive():
            raise SystemExit(f"it ended: {query.exception()}")
        time.sleep(0.1)
    lake.stop()
    thread.join()
    query.stop()
    archive.start(spark, once=True).awaitTermination()
    Run(pipeline, spark, once=True).run()
    say("finished")
