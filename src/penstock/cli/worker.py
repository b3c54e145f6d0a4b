"""`penstock worker`: does tasks with the handlers of a module."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import supervisor, target
from penstock.cli.parent import at_end_of_parent
from penstock.cli.queue_options import FROM_SETTINGS, LOOPBACK, QueueName, Url, queue_settings, seconds
from penstock.cli.shown import log_to_stderr
from penstock.providers import make_result_backend, make_task_queue
from penstock.results.backend import ResultBackend
from penstock.settings import Settings, TaskQueueSettings
from penstock.tasks import Handlers, Worker, WorkerReport


def worker(
    handlers: Annotated[str, typer.Argument(help="The handlers, as module:name.")],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Tasks at a time, per process.")] = 16,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Processes, supervised.")] = 1,
    burst: Annotated[bool, typer.Option("--burst", help="End when there is nothing left to do.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Start anew when a file of this folder changes.")] = False,
    idle_exit: Annotated[str | None, typer.Option(help="End after so long without work: '10m'.")] = None,
    max_uptime: Annotated[str | None, typer.Option(help="End after so long; a supervised one starts anew.")] = None,
    capabilities: Annotated[str, typer.Option(help="What this worker provides, with commas between.")] = "",
    grace: Annotated[str, typer.Option(help="How long handlers may take to end.")] = "30s",
    backend: Annotated[
        str | None,
        typer.Option(
            help="Where results are saved as well, as module:name.",
            show_default="[result_backend] of the settings, if given",
        ),
    ] = None,
    idle_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Silent workers lose their tasks after so long.", show_default="from the settings"),
    ] = None,
    max_retry: Annotated[
        int | None, typer.Option(min=0, help="How often a task is tried again.", show_default="from the settings")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve metrics; process n uses port + n.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Where metrics are served: 0.0.0.0 lets other machines ask.")
    ] = LOOPBACK,
    queue: QueueName = FROM_SETTINGS,
    url: Url = FROM_SETTINGS,
) -> None:
    """Do tasks with the handlers of a module until SIGTERM or Ctrl-C.

    With more than one process, or --watch, the processes are supervised: one that ends is started again.
    """
    log_to_stderr()
    loaded = target.load_handlers(handlers)
    settings, table = queue_settings(url, queue, idle_ms, max_retry)
    number = supervisor.supervised_number()
    if number is None and (processes > 1 or watch):
        _supervise(processes, Path.cwd() if watch else None, is_burst=burst, grace_s=seconds(grace))
        return
    options = {
        "concurrency": concurrency,
        "burst": burst,
        "idle_exit_ms": round(1000 * seconds(idle_exit)) if idle_exit else None,
        "max_uptime_ms": round(1000 * seconds(max_uptime)) if max_uptime else None,
        "shutdown_grace_ms": round(1000 * seconds(grace)),
        "provides": frozenset(filter(None, capabilities.split(","))),
        "results": target.load(backend, "the back-end") if backend else _results_of(settings),
    }
    port = metrics_port + (number or 0) if metrics_port else metrics_port
    place = None if port is None else (metrics_host, port)
    report = asyncio.run(_work(table, loaded, place, options, is_supervised=number is not None))
    typer.echo(_told(report))
    if report.reason == "uptime" and number is not None:
        raise typer.Exit(supervisor.ENOUGH)


def _supervise(processes: int, watched: Path | None, *, is_burst: bool, grace_s: float) -> None:
    # The same words, so that no option can be forgotten here; a process that is supervised starts no others.
    command = [sys.executable, "-m", "penstock", *sys.argv[1:]]
    made = supervisor.Supervisor(
        processes, command, typer.echo, partial(typer.echo, err=True),
        grace_s=grace_s, is_burst=is_burst, watched=watched,
    )  # fmt: skip
    if not made.run():
        raise typer.Exit(1)


async def _work(
    table: TaskQueueSettings,
    loaded: Handlers,
    metrics: tuple[str, int] | None,
    options: dict[str, Any],
    *,
    is_supervised: bool,
) -> WorkerReport:
    async with make_task_queue(table) as opened:
        if options["burst"]:
            await opened.pending_count()  # a worker waits for a server that is away; whoever wants a burst is told
        made = Worker(opened, loaded, **options)
        if is_supervised:
            at_end_of_parent(made.stop)
        if metrics is not None:
            from penstock.cli.task_metrics import WorkerCollector, serve

            server, _ = serve(*metrics, WorkerCollector(made.tally))
            typer.echo(f"metrics on port {server.server_port}")
        typer.echo(f"worker of queue {opened.name}: {', '.join(sorted(made.kinds))}")
        return await made.run()


def _results_of(settings: Settings) -> ResultBackend | None:
    # Only one that was asked for: by default results are in the queue alone, and a worker writes no files.
    is_given = any(item.name.startswith("result_backend.") and item.origin.source != "default" for item in settings.all)
    return make_result_backend(settings) if is_given else None


def _told(report: WorkerReport) -> str:
    parts = [f"{report.ok} done", f"{report.failed} failed", f"{report.dead} dead", f"{report.skipped} skipped"]
    return f"ended ({report.reason}): {', '.join(parts)}"
