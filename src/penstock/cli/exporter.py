"""`penstock exporter`: the numbers of a server for Prometheus."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from penstock.cli.command import Server, must_match
from penstock.cli.options import LOOPBACK, Every, Host, Pattern
from penstock.cli.shown import print_status
from penstock.shutdown import SignalWatch
from penstock.sync.ops import Sampler


def exporter(
    server: Server,
    stream: Pattern = "*",
    every: Every = 2.0,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to serve metrics on.")] = 9_808,
    host: Host = LOOPBACK,
) -> None:
    """Serve metrics of streams, queues, tasks, balanced services and servers until SIGTERM or Ctrl-C.

    The exit code is 3 if --stream is the name of a stream that does not exist.
    """
    from penstock.cli.worker_metrics import serve
    from penstock.sync.ops.metrics import InspectorCollector

    stop = threading.Event()
    with ExitStack() as stack:
        inspector = stack.enter_context(server.inspector())
        inspector.servers.all()  # a server that cannot be reached ends the command now, and later a sample only
        must_match(inspector, stream)
        sampler = stack.enter_context(Sampler(inspector, every_s=every, match=stream))
        metrics, thread = serve(host, port, InspectorCollector(sampler))
        stack.callback(SignalWatch.subscribe(stop.set))
        print_status(f"serving metrics of {inspector.client.settings.where} on port {metrics.server_port}")
        while not stop.wait(1.0):
            pass
        metrics.shutdown()
        thread.join(5.0)
        metrics.server_close()
