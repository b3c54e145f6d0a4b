"""`penstock pipeline`: run, check, preview, watch and reset the pipelines that TOML files declare."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command, group, load_settings
from penstock.cli.java_output import silent_end
from penstock.cli.options import (
    FROM_SETTINGS,
    LOOPBACK,
    AsJson,
    ConfigFile,
    DryRun,
    Limit,
    Once,
    Yes,
    confirm,
    is_on_command_line,
    url,
)
from penstock.cli.shown import print_rows, say
from penstock.cli.spark_session import Master, check_master, detect_dead_server, is_remote, leave, started
from penstock.cli.stopping import Stopping, stopping
from penstock.errors import ConfigurationError, PenstockError, summary_of
from penstock.shown import plain, shown, to_json
from penstock.shutdown import SignalWatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.events import EventSink
    from penstock.spark.pipeline import Pipeline
    from penstock.spark.pipeline.preview import Preview
    from penstock.spark.pipeline.progress import Progress

app = group("Run data pipelines on Spark.")
_LEVEL = "spark.log.level"
_NOISY_LOGGERS = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # where it was up to Spark 4.0
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.util.Utils",
)
File = Annotated[Path, typer.Argument(help="The TOML file of the pipeline.", show_default=False)]
Files = Annotated[list[Path], typer.Argument(help="The TOML files of the pipelines.", show_default=False)]
Profile = Annotated[
    str | None,
    typer.Option(envvar="PENSTOCK_PROFILE", help="The profile [profile.NAME], whose values override the others."),
]
SourceUrl = Annotated[
    str,
    url(
        "URL of the Redis or Valkey server to read from. The option overrides the file; the variable does not.",
        "url of the file, else task_queue.url of the settings",
    ),
]


@dataclass(frozen=True)
class SourceServer:
    """The server of a source, as --url, the pipeline file, PENSTOCK_URL and the settings say, in this order."""

    url: str
    overrides_files: bool
    config: Path | None

    @classmethod
    def from_options(
        cls, context: typer.Context, url: SourceUrl = FROM_SETTINGS, config: ConfigFile = None
    ) -> SourceServer:
        """Read the options; the settings are read only if a file needs them."""
        return cls(url, is_on_command_line(context, "url"), config)

    def pipeline(self, file: Path, profile: str | None) -> Pipeline:
        """Read a pipeline file."""
        from penstock.settings.binding import Document
        from penstock.spark.pipeline.spec_file import SpecFile

        spec = SpecFile(Document.read(file), profile)
        if self.overrides_files or not spec.has_source_url:
            spec.set_source_url(load_settings(self.url, self.config).task_queue.url)
        return spec.pipeline()


class PipelinesFailed(PenstockError):
    """Some of several pipelines failed; `problems` has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@command(app)
def run(
    server: SourceServer,
    files: Files,
    once: Once = True,
    profile: Profile = None,
    master: Master = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address to serve metrics on; 0.0.0.0 accepts connections from other machines.")
    ] = LOOPBACK,
    as_json: AsJson = False,
) -> None:
    """Run pipelines from their checkpoints, several in one Spark session.

    Each pipeline is validated first. SIGTERM and Ctrl-C stop it after its current batch; the next run continues there.
    """
    pipelines = _read_all(server, files, profile)
    with stopping(_named(pipelines)) as stop, ExitStack() as stack:
        on_event = None if metrics_port is None else stack.enter_context(_metrics(metrics_host, metrics_port))
        spark = stack.enter_context(_session(pipelines, files, master, stop))
        if len(pipelines) == 1:
            _run_one(pipelines[0], spark, on_event, once=once, as_json=as_json, prefix="")
            return
        # Each has a session of its own, whose settings and tables no other sees. They share Spark and its executors.
        stack.callback(SignalWatch.subscribe(lambda: None))  # the handlers are this thread's to install
        with ThreadPoolExecutor(len(pipelines), "pipeline") as threads:
            ends = [
                threads.submit(
                    _run_one, each, _own_session(spark), on_event, once=once, as_json=as_json, prefix=f"{each.name}: "
                )
                for each in pipelines
            ]
        _raise_all(end.exception() for end in ends)


def _run_one(
    pipeline: Pipeline, spark: SparkSession, on_event: EventSink | None, *, once: bool, as_json: bool, prefix: str
) -> None:
    def tell(progress: Progress) -> None:
        if as_json:
            print(to_json({"pipeline": pipeline.name, **progress.as_dict()}), flush=True)
        else:
            say(f"{prefix}{progress}")

    try:
        report = pipeline.run(spark, once=once, tell=tell, on_event=on_event)
    except Exception as error:
        # The command reports it at its end, which in a continuous run comes when the others stop.
        for line in _lines_of(error) if prefix else ():
            say(f"{prefix}{pipeline.masked(line)}", is_needed=True)
        raise
    how = "stopped" if report.is_stopped else "done"
    say(f"{pipeline.name}: {how} after {report.batches} batches, {report.rows:,} rows")


def _own_session(spark: SparkSession) -> SparkSession:
    from penstock.spark import register

    own = spark.newSession()
    register(own)
    return own


def _raise_all(errors: Iterable[BaseException | None]) -> None:
    found = [error for error in errors if error is not None]
    for error in found:
        if not isinstance(error, PenstockError):
            raise error
    if found:
        raise PipelinesFailed([line for error in found for line in _lines_of(error)])


def _lines_of(error: BaseException) -> list[str]:
    text = str(error) if isinstance(error, PenstockError) else summary_of(error)
    return [str(line) for line in getattr(error, "problems", (text,))]


@contextmanager
def _metrics(host: str, port: int) -> Iterator[EventSink]:
    from penstock.cli.worker_metrics import serve
    from penstock.spark.pipeline.metrics import PipelineMetrics

    metrics = PipelineMetrics()
    server, thread = serve(host, port, metrics)
    say(f"serving metrics on port {server.server_port}")
    try:
        yield metrics
    finally:
        server.shutdown()
        thread.join(5.0)
        server.server_close()


@command(app)
def validate(
    server: SourceServer, files: Files, profile: Profile = None, master: Master = None, as_json: AsJson = False
) -> None:
    """Check pipelines without running them; print one line per problem and exit with code 2 if there are any."""
    from penstock.spark.pipeline.validation import PipelineInvalid

    pipelines = _read_all(server, files, profile)
    problems: list[str] = []
    with stopping(_named(pipelines)) as stop, _session(pipelines, files, master, stop) as spark, stop.at_once():
        for file, pipeline in zip(files, pipelines, strict=True):
            found: Sequence[str] = ()
            try:
                pipeline.validate(spark)
            except PipelineInvalid as error:
                found = error.problems
            problems += [f"{file}: {each}" if files[1:] else each for each in found]
            if as_json:
                print(to_json({"file": str(file), "pipeline": pipeline.name, "is_valid": not found, "problems": found}))
            elif not found:
                print(f"{shown(file)}: pipeline {pipeline.name!r} is valid")
    if problems:
        raise PipelineInvalid(tuple(problems))


@command(app)
def status(server: SourceServer, files: Files, profile: Profile = None, as_json: AsJson = False) -> None:
    """Print the progress of pipelines; needs access to their checkpoints, but no Spark."""
    pipelines = _read_all(server, files, profile)
    from penstock.spark.pipeline.status import status as status_of

    for found in map(status_of, pipelines):
        if as_json:
            print(to_json(found.as_dict()))
            continue
        batch = "nothing yet" if found.committed_batch is None else f"batch {found.committed_batch}"
        behind = "unknown" if found.lag is None else f"{found.lag:,}"
        print(f"{found.name}: committed {batch}, lag {behind}")
        print(f"  driver: {shown(found.driver or 'never started')}")
        for name, stream in found.streams.items():
            at = stream["at"] or "the beginning"
            print(f"  {shown(name)}: at {at}, newest {stream['newest']}, lag {stream['lag']}")
        if found.last is not None:
            print(f"  last batch: {found.last['rows']:,} rows, {found.last['rows_per_s']:,.0f}/s, {found.last['time']}")


@command(app)
def preview(
    server: SourceServer,
    file: File,
    limit: Limit = 20,
    profile: Profile = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Print the first rows that each sink would receive. Nothing is written, and no handler is called."""
    (pipeline,) = _read_all(server, [file], profile)
    from penstock.spark.pipeline.preview import preview as preview_of

    with stopping(pipeline.name) as stop, _session([pipeline], [file], master, stop) as spark, stop.at_once():
        found = preview_of(pipeline, spark, limit)
        _print_preview(pipeline.name, found, as_json=as_json)


def _print_preview(name: str, found: Preview, *, as_json: bool) -> None:
    say(f"{name}: {found.entries} entries")
    for rule, count in found.broken.items():
        say(f"  {count} break the rule {rule!r}" if rule != "decode_error" else f"  {count} cannot be decoded")
    for handler in found.handlers:
        say(f"  handler {handler} was not called, so its output columns are empty")
    for sink, rows in found.sinks.items():
        if as_json:
            for row in rows:
                print(to_json({"sink": sink, "row": row}))
            continue
        say(f"{sink}:")
        titles = dict.fromkeys(title for row in rows for title in row)
        print_rows(rows, {title: partial(_cell, title) for title in titles}, as_json=False, none="  no rows")


def _cell(name: str, row: dict[str, object]) -> object:
    value = row.get(name)
    return to_json(value) if isinstance(value, dict | list) else value


@command(app)
def reset(
    server: SourceServer,
    file: File,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help=(
                "Where to start: earliest, latest, an id, a time such as 2026-11-15T12:00Z, or how long ago, "
                "such as 2h."
            ),
        ),
    ],
    profile: Profile = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Restart a pipeline from another position: the next run reads from there.

    Entries that it reads again are written again: sinks with a key replace their rows, others get duplicates.
    """
    (pipeline,) = _read_all(server, [file], profile)
    from penstock.spark.pipeline.reset import plan_reset
    from penstock.spark.pipeline.reset import reset as carry_out

    planned = plan_reset(pipeline, start, time.time_ns() // 1_000_000)
    say(f"{pipeline.name}: {planned}")
    if not dry_run:
        confirm("Reset the pipeline?", yes=yes)
        carry_out(pipeline, planned)
    if as_json:
        print(to_json({"pipeline": pipeline.name, **plain(planned), "is_dry_run": dry_run}))


@command(app)
def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    from penstock.spark.pipeline.spec_file import json_schema

    print(json.dumps(json_schema(), indent=2))


def _read_all(server: SourceServer, files: Sequence[Path], profile: str | None) -> list[Pipeline]:
    pipelines = [server.pipeline(file, profile) for file in files]
    for what in ("name", "checkpoint"):
        values = [getattr(pipeline, what) for pipeline in pipelines]
        for value in values:
            if values.count(value) > 1:
                raise ConfigurationError(f"two pipelines have the {what} {value!r}: give each its own")
    return pipelines


def _make_importable(folders: Iterable[Path]) -> None:
    """Let Python import the functions that a file names from these folders.

    The workers of a local Spark take PYTHONPATH from us; executors of a cluster get the modules with the job.
    """
    wanted = list(dict.fromkeys(map(str, folders)))
    sys.path[:0] = [folder for folder in wanted if folder not in sys.path]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*wanted, *filter(None, inherited)]))


def _named(pipelines: Sequence[Pipeline]) -> str:
    return ", ".join(pipeline.name for pipeline in pipelines)


def _settings_of(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Return the settings of the one session; raise ConfigurationError where two pipelines want different ones."""
    made: dict[str, str] = {}
    for pipeline in pipelines:
        for key, value in pipeline.spark.items():
            if made.setdefault(key, value) != value:
                raise ConfigurationError(f"the pipelines set different values for [spark] {key}: run them separately")
    return made


@contextmanager
def _session(
    pipelines: Sequence[Pipeline], files: Sequence[Path], master: str | None, stop: Stopping
) -> Iterator[SparkSession]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from penstock.spark.runtime.errors import one_line
    from penstock.spark.runtime.master import is_connect
    from penstock.spark.sessions import session

    # The bridge to Java logs the traceback of every error that ends a batch; we print one line.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    settings = _settings_of(pipelines)
    check_master(master or settings.get("spark.master"), needs_classic=len(pipelines) > 1)
    ours = {} if is_remote(master) else {_LEVEL: "ERROR", "spark.ui.showConsoleProgress": "false"}
    conf = {**ours, **settings}
    _make_importable([Path.cwd(), *(file.absolute().parent for file in files)])
    try:
        with stop.at_once(), started(master or settings.get("spark.master"), shows_output=_LEVEL in settings):
            spark = session(_named(pipelines), master, conf=conf)
    except (PySparkException, Py4JError) as error:
        raise PenstockError(f"cannot start Spark: {one_line(getattr(error, 'java_exception', error))}") from None
    if is_connect(spark):
        detect_dead_server(spark)
    elif _LEVEL not in settings:
        _silence_loggers(spark)
    try:
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # a signal to the whole group has ended Java already
            if is_connect(spark):
                leave(spark)
            else:
                if _LEVEL not in settings:
                    spark.sparkContext.setLogLevel("OFF")  # tasks that are left may mind the end of Spark
                silent_end()
                spark.stop()


def _silence_loggers(spark: SparkSession) -> None:
    """Keep Spark from printing the stack traces of failed batches: we print one line."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001 - PySpark sets one level for all
    for name in _NOISY_LOGGERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
