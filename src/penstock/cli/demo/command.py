"""`penstock demo`: a queue survives the killing of a worker, on a server of its own, before your eyes."""

from __future__ import annotations

import asyncio
import itertools
import queue
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console

from penstock import StreamClient, StreamProducer
from penstock.cli.demo import spark as demo_spark
from penstock.cli.demo import view as demo_view
from penstock.cli.demo.orders import GROUP, STREAM, WORKERS, Plan, make_plan
from penstock.cli.demo.run import DemoOutput, DemoRun, DemoSummary
from penstock.cli.demo.workers import DemoWorkers
from penstock.cli.options import LOOPBACK, AsJson
from penstock.cli.shown import say
from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.shown import to_json

Then: TypeAlias = Callable[[DemoSummary, EmbeddedServer, DemoWorkers], None]
_INTERRUPTED = 128 + signal.SIGINT  # as a shell reports it
_TERMINATED = 128 + signal.SIGTERM
_ORDER_EVERY_S = 0.02
_START_S = 30.0  # in which a dashboard starts, or ends
_NEXT_STEPS = """\
The server keeps running at {url}, with a producer and {workers} workers.{dashboard}
Inspect it from another terminal:

  export PENSTOCK_URL={url}
  {penstock} top
  {penstock} stream ls
  {penstock} dlq ls

Ctrl-C stops everything."""


def demo(
    messages: Annotated[int, typer.Option(min=100, max=200_000, help="Number of orders to publish.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Determines which orders are bad and which worker is killed.")] = 1,
    with_spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Also read the orders with Spark, if it is installed.")
    ] = True,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Keep the server running afterwards, with a producer, workers and a dashboard."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish orders, kill a worker in the middle, and prove that nothing is lost.

    Starts a private Redis or Valkey server, two producers and two worker processes. One worker is killed with SIGKILL,
    another takes its place; a few orders are bad and go to the dead letters. Then Spark reads the stream, writes it to
    Parquet and back into a stream, and the counts are compared. Everything is removed afterwards.
    """
    plan = make_plan(messages, seed)
    try:
        output = demo_view.output(Console(stderr=True), messages)
        summary = play(plan, output, with_spark, partial(_stay, plan, as_json) if stay else None)
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        Console(stderr=True).print("Stopped; server and workers have ended.", highlight=False)
        raise typer.Exit(_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else _TERMINATED) from None
    show(summary, as_json)
    if not summary.holds:
        raise typer.Exit(1)
    say(f"Run `{program()} demo --stay` to keep the server running, with a producer, workers and a dashboard.")


def program() -> str:
    """Return how a shell calls this installation: that of a clone is not on PATH."""
    script = Path(sys.executable).with_name("penstock")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m penstock"
    found, folder = shutil.which("penstock"), Path.cwd()
    if found is not None and script.samefile(found):
        return "penstock"
    return shlex.quote(str(script.relative_to(folder) if script.is_relative_to(folder) else script))


def play(
    plan: Plan, output: demo_view.PlainOutput | demo_view.ProgressOutput, with_spark: bool, then: Then | None = None
) -> DemoSummary:
    """Run the demo on a server of its own, then what else is wanted; server and workers end with it in any case."""
    with EmbeddedServer(port=None if then is None else 0) as server, DemoWorkers(server.unix_url) as workers:
        with output:
            summary = asyncio.run(_direct(server.unix_url, workers, plan, output, with_spark))
        if then is not None:
            then(summary, server, workers)
        return summary


def _stay(plan: Plan, as_json: bool, summary: DemoSummary, server: EmbeddedServer, workers: DemoWorkers) -> None:
    show(summary, as_json)
    with _dashboard(server.unix_url) as address:
        where = f" The dashboard is at\n{address} (actions allowed)." if address else ""
        say(_NEXT_STEPS.format(url=server.url, workers=WORKERS, dashboard=where, penstock=program()))
        asyncio.run(_keep_busy(server.unix_url, workers, plan))


@contextmanager
def _dashboard(url: str) -> Iterator[str]:
    """Serve a dashboard in a thread, which ends with this process in any case; yield its address, '' without one."""
    try:
        from penstock.dashboard import create_app
        from penstock.dashboard.server import DashboardServer
    except ConfigurationError as error:  # the extra is not installed
        say(error)
        yield ""
        return
    addresses: queue.Queue[str] = queue.Queue()
    server = DashboardServer(create_app(url, allow_actions=True), LOOPBACK, 0, addresses.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield addresses.get(timeout=_START_S)
    finally:
        server.should_exit = True
        thread.join(_START_S)


def _end_in_order() -> None:
    # SIGTERM and a closed terminal clean up as Ctrl-C does.
    main_task = asyncio.current_task()
    assert main_task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, main_task.cancel)


async def _keep_busy(url: str, workers: DemoWorkers, plan: Plan) -> None:
    _end_in_order()
    for number in range(WORKERS):
        workers.start(f"worker-{number + 1}")
    async with StreamClient.from_url(url) as client:
        producer = StreamProducer(client, STREAM, GROUP)
        for number in itertools.count():
            await producer.push(plan.order(number % plan.messages))
            workers.check()
            await asyncio.sleep(_ORDER_EVERY_S)


async def _direct(url: str, workers: DemoWorkers, plan: Plan, output: DemoOutput, with_spark: bool) -> DemoSummary:
    _end_in_order()
    async with StreamClient.from_url(url) as client:
        summary = await DemoRun(client, workers, plan, output).run()
        if not with_spark:
            return summary
        if not demo_spark.is_installed():
            output.show("Spark is not installed, so its part is skipped (pip install 'penstock[spark]')")
            return summary
        output.show("starting Spark")
        return replace(summary, spark=await demo_spark.count(client, url, output.show))


def show(summary: DemoSummary, as_json: bool) -> None:
    """Print the outcome: the table or the JSON to standard output, a failure to standard error."""
    if as_json:
        print(to_json(summary.as_json()))
    else:
        Console().print(demo_view.table(summary))
    if not summary.is_finished:
        Console(stderr=True).print("Time ran out before all orders were settled; the rest are still queued.")
    if not as_json or not summary.holds:
        Console(stderr=not summary.holds).print(
            demo_view.verdict(summary), style="bold", highlight=False, markup=False, soft_wrap=True
        )
