"""`penstock exporter`: the numbers of queues for Prometheus."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from penstock.cli.queue_options import FROM_SETTINGS, LOOPBACK, Host, Url, open_queue
from penstock.shutdown import SignalWatch


def exporter(
    queues: Annotated[list[str] | None, typer.Argument(help="The names of the queues.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where metrics are served.")] = 9_808,
    host: Host = LOOPBACK,
    url: Url = FROM_SETTINGS,
) -> None:
    """Serve the metrics of task queues until SIGTERM or Ctrl-C."""
    from penstock.cli.task_metrics import QueueCollector, serve

    stop = threading.Event()
    with ExitStack() as stack:
        opened = [stack.enter_context(open_queue(url, name)) for name in queues or ["penstock"]]
        server, thread = serve(host, port, QueueCollector(opened))
        stack.callback(SignalWatch.subscribe(stop.set))
        typer.echo(f"metrics of {', '.join(queue.name for queue in opened)} on port {server.server_port}")
        while not stop.wait(1.0):
            pass
        server.shutdown()
        thread.join(5.0)
        server.server_close()
