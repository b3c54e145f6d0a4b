"""`penstock worker`: runs tasks with the handlers of a module."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from penstock.cli import supervisor, target
from penstock.cli.command import Server
from penstock.cli.options import (
    FROM_SETTINGS,
    LOOPBACK,
    Burst,
    Concurrency,
    Grace,
    Lease,
    MetricsHost,
    MetricsPort,
    Processes,
    QueueName,
    Results,
    Watch,
    duration,
    words,
)  # fmt: skip
from penstock.cli.results_place import result_settings
from penstock.cli.shown import print_status
from penstock.providers import make_result_backend, make_task_queue
from penstock.results.backend import ResultBackend
from penstock.settings import Settings, TaskQueueSettings
from penstock.tasks import Handlers, Worker, WorkerReport


def worker(
    server: Server,
    handlers: Annotated[str, typer.Argument(help="The handlers, as module:name.")],
    concurrency: Concurrency = 16,
    processes: Processes = 1,
    burst: Burst = False,
    watch: Watch = False,
    idle_exit: Annotated[float | None, duration("Exit after this long without work.")] = None,
    max_uptime: Annotated[float | None, duration("Exit after this long; a supervised worker is restarted.")] = None,
    capabilities: Annotated[str, typer.Option(help="The capabilities of this worker, separated by commas.")] = "",
    grace: Grace = 30.0,
    results: Results = None,
    lease: Lease = None,
    max_retry: Annotated[
        int | None, typer.Option(min=0, help="How often to retry a task.", show_default="from the settings")
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    queue: QueueName = FROM_SETTINGS,
) -> None:
    """Run tasks with the handlers of a module until SIGTERM or Ctrl-C.

    With --processes above 1, or --watch, the processes are supervised: one that ends is restarted.
    """
    loaded = target.load_handlers(handlers)
    table = server.task_queue_settings(
        queue, idle_ms=None if lease is None else round(1000 * lease), max_retry=max_retry
    )
    number = supervisor.supervised_number()
    if number is None and (processes > 1 or watch):
        supervisor.supervise(processes, watch=watch, is_burst=burst, grace_s=grace)
        return
    options = {
        "concurrency": concurrency,
        "burst": burst,
        "idle_exit_ms": None if idle_exit is None else round(1000 * idle_exit),
        "max_uptime_ms": None if max_uptime is None else round(1000 * max_uptime),
        "shutdown_grace_ms": round(1000 * grace),
        "provides": words(capabilities),
        "results": _results(results, server.settings),
    }
    place = supervisor.metrics_place(metrics_host, metrics_port)
    report = asyncio.run(_work(table, loaded, place, options, is_supervised=number is not None))
    print_status(_summary(report))
    if report.reason == "uptime" and number is not None:
        raise typer.Exit(supervisor.RESTART)


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
            await opened.pending_count()  # a worker waits for an unreachable server; a burst fails
        made = Worker(opened, loaded, **options)
        if is_supervised:
            supervisor.at_end_of_parent(made.stop)
        if metrics is not None:
            from penstock.cli.worker_metrics import WorkerCollector, serve

            server, _ = serve(*metrics, WorkerCollector(made.tally))
            print_status(f"serving metrics on port {server.server_port}")
        with supervisor.signals_recorded():
            print_status(f"worker of queue {opened.name}: {', '.join(sorted(made.kinds))}")
            return await made.run()


def _results(given: str | None, settings: Settings) -> ResultBackend | None:
    if given is not None and target.is_target(given):
        loaded: ResultBackend = target.load(given, "the back-end")
        return loaded
    # Only one that was asked for: by default results are in the queue alone, and a worker writes no files.
    is_given = any(item.name.startswith("result_backend.") and item.origin.source != "default" for item in settings.all)
    return make_result_backend(result_settings(given, settings)) if given is not None or is_given else None


def _summary(report: WorkerReport) -> str:
    parts = [
        f"{report.ok} done",
        f"{report.failed} failed",
        f"{report.dead} dead-lettered",
        f"{report.skipped} skipped",
    ]
    return f"ended ({report.reason}): {', '.join(parts)}"
