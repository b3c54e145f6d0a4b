"""`penstock pipeline`: run, validate and look at the pipelines that TOML files declare."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command, group
from penstock.cli.options import AsJson, Once
from penstock.cli.shown import say
from penstock.cli.spark_session import Master, check_master, is_remote, leave, notice_a_dead_server
from penstock.errors import PenstockError
from penstock.shown import shown, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline import Pipeline
    from penstock.spark.pipeline.progress import Progress

app = group("Run data pipelines on Spark.")
_LEVEL = "spark.log.level"
_TALKERS = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # where it was up to Spark 4.0
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.util.Utils",
)
File = Annotated[Path, typer.Argument(help="The TOML file of the pipeline.", show_default=False)]


@command(app)
def run(
    file: File,
    once: Once = True,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline from its checkpoint on.

    It is validated first. SIGTERM and Ctrl-C end it after the batch that is under way. Started again, it continues.
    """

    def tell(progress: Progress) -> None:
        if as_json:
            print(to_json(progress.as_dict()), flush=True)
        else:
            say(progress)

    pipeline = _read(file)
    with _session(pipeline, master) as spark:
        report = pipeline.run(spark, once=once, tell=tell)
    how = "stopped" if report.is_stopped else "done"
    say(f"{pipeline.name}: {how} after {report.batches} batches, {report.rows:,} rows")


@command(app)
def validate(file: File, master: Master = None) -> None:
    """Check a pipeline without running it: each fault is a line, and the exit code is 2."""
    pipeline = _read(file)
    with _session(pipeline, master) as spark:
        pipeline.validate(spark)
    print(f"{file}: pipeline {pipeline.name!r} can run")


@command(app)
def status(file: File, as_json: AsJson = False) -> None:
    """Print how far a pipeline has come; needs no Spark, but the disk with its checkpoint."""
    pipeline = _read(file)
    from penstock.spark.pipeline.status import status as status_of

    found = status_of(pipeline)
    if as_json:
        print(to_json(found.as_dict()))
        return
    batch = "nothing yet" if found.committed_batch is None else f"batch {found.committed_batch}"
    behind = "unknown" if found.lag is None else f"{found.lag:,}"
    print(f"{found.name}: committed {batch}, lag {behind}")
    print(f"  driver: {shown(found.driver or 'never started')}")
    for name, stream in found.streams.items():
        print(f"  {shown(name)}: at {stream['at'] or 'the beginning'}, newest {stream['newest']}, lag {stream['lag']}")
    if found.last is not None:
        print(f"  last batch: {found.last['rows']:,} rows, {found.last['rows_per_s']:,.0f}/s, {found.last['time']}")


def _read(file: Path) -> Pipeline:
    try:
        from penstock.spark.pipeline import Pipeline
    except ModuleNotFoundError as error:
        raise PenstockError(f"pipelines need {error.name}: pip install 'penstock[spark]'") from None
    return Pipeline.from_file(file)


@contextmanager
def _session(pipeline: Pipeline, master: str | None) -> Iterator[SparkSession]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from penstock.spark.master import is_connect
    from penstock.spark.session import session
    from penstock.spark.spark_errors import one_line

    # The bridge to Java logs the traceback of whatever ends a batch; we tell it in one line.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    check_master(master or pipeline.spark.get("spark.master"))
    ours = {} if is_remote(master) else {_LEVEL: "ERROR", "spark.ui.showConsoleProgress": "false"}
    conf = {**ours, **pipeline.spark}
    # Functions that the file names may be where the command is run, as with `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    try:
        spark = session(pipeline.name, master, conf=conf)
    except (PySparkException, Py4JError) as error:
        raise PenstockError(
            f"Spark could not be started: {one_line(getattr(error, 'java_exception', error))}"
        ) from None
    if is_connect(spark):
        notice_a_dead_server(spark)
    elif _LEVEL not in pipeline.spark:
        _hush(spark)
    try:
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # a signal to the whole group has ended Java already
            if is_connect(spark):
                leave(spark)
            else:
                if _LEVEL not in pipeline.spark:
                    spark.sparkContext.setLogLevel("OFF")  # tasks that are left may mind the end of Spark
                spark.stop()


def _hush(spark: SparkSession) -> None:
    """Keep Spark from printing the stacks of what ends a batch: we tell it in one line."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001 - PySpark sets one level for all
    for name in _TALKERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
