"""`penstock demo`: a queue survives the killing of a worker, on a server of its own, before your eyes."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from penstock import StreamClient
from penstock.cli import demo_spark, demo_view
from penstock.cli.demo_director import Audience, Director, Summary
from penstock.cli.demo_orders import Plan, make_plan
from penstock.cli.demo_workers import Workers
from penstock.redis.embedded import EmbeddedServer

_INTERRUPTED = 128 + signal.SIGINT  # as a shell reports it
_TERMINATED = 128 + signal.SIGTERM


def demo(
    messages: Annotated[int, typer.Option(min=100, max=200_000, help="How many orders are published.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Decides which orders are bad and which worker dies.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    with_spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Have Spark read the orders as well, if it is installed.")
    ] = True,
) -> None:
    """Publish orders, kill a worker in the middle, and prove that nothing is lost.

    Starts a private Redis or Valkey server, two producers and two worker processes. One worker is killed with SIGKILL,
    another takes its place; a few orders are bad and go to the dead letters. Then Spark reads the stream, writes it to
    Parquet and back into a stream, and the counts are compared. Everything is gone afterwards.
    """
    plan = make_plan(messages, seed)
    try:
        with demo_view.audience(Console(stderr=True), messages) as audience:
            summary = play(plan, audience, with_spark)
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        Console(stderr=True).print("Stopped: server and workers are gone.", highlight=False)
        raise typer.Exit(_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else _TERMINATED) from None
    show(summary, as_json)
    if not summary.holds:
        raise typer.Exit(1)


def play(plan: Plan, audience: Audience, with_spark: bool) -> Summary:
    """Run the demo on a server of its own; whatever happens, server and workers end with it."""
    with EmbeddedServer() as server, Workers(server.unix_url) as workers:
        return asyncio.run(_direct(server.unix_url, workers, plan, audience, with_spark))


async def _direct(url: str, workers: Workers, plan: Plan, audience: Audience, with_spark: bool) -> Summary:
    here = asyncio.current_task()
    assert here is not None
    # Being told to end, and losing the terminal, are to leave as little behind as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, here.cancel)
    async with StreamClient.from_url(url) as client:
        summary = await Director(client, workers, plan, audience).run()
        if not with_spark:
            return summary
        if not demo_spark.is_installed():
            audience.tell("Spark is not installed: its part is left out (pip install 'penstock[spark]')")
            return summary
        audience.tell("Spark starts")
        return replace(summary, spark=await demo_spark.count(client, url, audience.tell))


def show(summary: Summary, as_json: bool) -> None:
    """Print the outcome: the table or the JSON to standard output, a failure to standard error."""
    if as_json:
        print(json.dumps(summary.as_json(), indent=2))
    else:
        Console().print(demo_view.table(summary))
    if not summary.is_finished:
        Console(stderr=True).print("The time was up before all orders were settled: the rest is queued.")
    if not as_json or not summary.holds:
        Console(stderr=not summary.holds).print(
            demo_view.verdict(summary), style="bold", highlight=False, markup=False, soft_wrap=True
        )
