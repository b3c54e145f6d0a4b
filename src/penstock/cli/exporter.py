"""`penstock exporter`: the numbers of queues for Prometheus."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from penstock.cli.command import Server
from penstock.cli.options import LOOPBACK, Host
from penstock.cli.shown import say
from penstock.shutdown import SignalWatch


def exporter(
    server: Server,
    queues: Annotated[list[str] | None, typer.Argument(help="The names of the queues.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where metrics are served.")] = 9_808,
    host: Host = LOOPBACK,
) -> None:
    """Serve the metrics of task queues until SIGTERM or Ctrl-C."""
    from penstock.cli.task_metrics import QueueCollector, serve

    stop = threading.Event()
    with ExitStack() as stack:
        opened = [stack.enter_context(server.task_queue(name)) for name in queues or ["penstock"]]
        metrics, thread = serve(host, port, QueueCollector(opened))
        stack.callback(SignalWatch.subscribe(stop.set))
        say(f"metrics of {', '.join(queue.name for queue in opened)} on port {metrics.server_port}")
        while not stop.wait(1.0):
            pass
        metrics.shutdown()
        thread.join(5.0)
        metrics.server_close()
