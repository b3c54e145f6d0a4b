"""`penstock worker`: does tasks with the handlers of a module."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import supervisor, target
from penstock.cli.queue_options import DEFAULT_URL, QueueName, Url, seconds
from penstock.tasks import RedisTaskQueue, Worker, WorkerReport


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
    backend: Annotated[str | None, typer.Option(help="Where results are saved as well, as module:name.")] = None,
    idle_ms: Annotated[int, typer.Option(min=1, help="Silent workers lose their tasks after so long.")] = 60_000,
    max_retry: Annotated[int, typer.Option(min=0, help="How often a task is tried again.")] = 3,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve metrics; process n uses port + n.")
    ] = None,
    queue: QueueName = "penstock",
    url: Url = DEFAULT_URL,
) -> None:
    """Do tasks with the handlers of a module until SIGTERM or Ctrl-C.

    With more than one process, or --watch, the processes are supervised: one that ends is started again.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    loaded = target.load_handlers(handlers)
    if processes > 1 or watch:
        words = _words(sys.argv)
        told = supervisor.Supervisor(
            processes,
            lambda number: [sys.executable, "-m", "penstock", *words, *_port(metrics_port, number)],
            {"PENSTOCK__TASK_QUEUE__URL": url},  # in the environment and not among the words, which everybody can see
            lambda text: typer.echo(text, err=True),
            Path.cwd() if watch else None,
        )
        told.run()
        return
    options = {
        "concurrency": concurrency,
        "burst": burst,
        "idle_exit_s": seconds(idle_exit) if idle_exit else None,
        "max_uptime_s": seconds(max_uptime) if max_uptime else None,
        "grace_s": seconds(grace),
        "provides": frozenset(filter(None, capabilities.split(","))),
        "results": target.load(backend, "the back-end") if backend else None,
    }

    async def work() -> WorkerReport:
        async with RedisTaskQueue(url, queue, idle_ms=idle_ms, max_retry=max_retry) as opened:
            made = Worker(opened, loaded, **options)  # type: ignore[arg-type]
            if supervisor.is_supervised():
                supervisor.at_end_of_parent(made.stop)
            if metrics_port is not None:
                from penstock.cli.task_metrics import WorkerCollector, serve

                server, _ = serve(metrics_port, WorkerCollector(made.tally))
                typer.echo(f"metrics on port {server.server_port}", err=True)
            typer.echo(f"worker of queue {queue}: {', '.join(sorted(made.kinds))}", err=True)
            return await made.run()

    report = asyncio.run(work())
    typer.echo(_told(report), err=True)
    if report.reason == "uptime" and supervisor.is_supervised():
        raise typer.Exit(supervisor.ENOUGH)


def _told(report: WorkerReport) -> str:
    parts = [f"{report.ok} done", f"{report.failed} failed", f"{report.dead} dead", f"{report.skipped} skipped"]
    return f"ended ({report.reason}): {', '.join(parts)}"


_TAKEN = {"--processes": 1, "-p": 1, "--watch": 0, "--metrics-port": 1, "--url": 1}


def _words(arguments: list[str]) -> list[str]:
    # What a single process is started with: the same words without those that are the supervisor's.
    kept, rest = [], arguments[1:]
    while rest:
        word, *rest = rest
        name = word.partition("=")[0]
        if name not in _TAKEN:
            kept.append(word)
        elif "=" not in word:
            rest = rest[_TAKEN[name] :]
    return kept


def _port(port: int | None, number: int) -> list[str]:
    return [] if port is None else ["--metrics-port", str(port + number if port else 0)]
