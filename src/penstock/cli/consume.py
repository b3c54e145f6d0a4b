"""`penstock consume`: handles the messages of a stream with a function of a module."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from penstock import ConsumerConfig, StreamClient, StreamConsumer
from penstock.cli import supervisor, target
from penstock.cli.command import Server
from penstock.cli.options import (
    LOOPBACK,
    Burst,
    Concurrency,
    Grace,
    MetricsHost,
    MetricsPort,
    Processes,
    Watch,
    duration,
)
from penstock.cli.shown import print_status
from penstock.delivery.group import ConsumerGroup
from penstock.errors import ConfigurationError

_POLL_S = 0.2


def consume(
    server: Server,
    handler: Annotated[str, typer.Argument(help="The function that handles one message, as module:name.")],
    stream: Annotated[str, typer.Option(help="The stream.")],
    group: Annotated[str, typer.Option(help="The consumer group; it is created if it does not exist.")],
    concurrency: Concurrency = 16,
    processes: Processes = 1,
    batch: Annotated[
        int | None, typer.Option(min=1, help="The function takes lists of at most this many messages.")
    ] = None,
    burst: Burst = False,
    watch: Watch = False,
    lease: Annotated[float, duration("How long an unresponsive consumer keeps its messages.", default="10s")] = 10.0,
    max_deliveries: Annotated[
        int, typer.Option(min=1, help="How often to try a message before it is dead-lettered.")
    ] = 3,
    dead_letters: Annotated[str | None, typer.Option(help="The stream for dead letters.")] = None,
    grace: Grace = 30.0,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Handle the messages of a stream with a function of a module until SIGTERM or Ctrl-C.

    With --processes above 1, or --watch, the processes are supervised: one that ends is restarted.
    """
    function = target.load(handler, "the handler")
    if not callable(function):
        raise ConfigurationError(f"{handler!r} must be a function, not a {type(function).__name__}")
    config = ConsumerConfig(
        group=group,
        dlq_stream=dead_letters,
        batch_size=batch or ConsumerConfig.batch_size,
        min_idle_claim_ms=round(1000 * lease),
        max_deliveries=max_deliveries,
        concurrency=concurrency,
        shutdown_grace_ms=round(1000 * grace),
    )
    number = supervisor.supervised_number()
    if number is None and (processes > 1 or watch):
        supervisor.supervise(processes, watch=watch, is_burst=burst, grace_s=grace)
        return
    handles = {"handler": function} if batch else {"message_handler": function}
    place = supervisor.metrics_place(metrics_host, metrics_port)
    asyncio.run(_consume(server, stream, config, handles, place, burst=burst, is_supervised=number is not None))


async def _consume(
    server: Server,
    stream: str,
    config: ConsumerConfig,
    handles: dict[str, Any],
    metrics: tuple[str, int] | None,
    *,
    burst: bool,
    is_supervised: bool,
) -> None:
    async with StreamClient.from_url(server.url, protection=server.protection) as client:
        group = ConsumerGroup(client, stream, config.group)
        if burst:
            await group.ensure()  # a consumer waits for an unreachable server; a burst fails
        consumer = StreamConsumer(client, stream, config, **handles)
        if is_supervised:
            supervisor.at_end_of_parent(consumer.stop)
        if metrics is not None:
            from penstock.cli.worker_metrics import ConsumerCollector, serve

            served, _ = serve(*metrics, ConsumerCollector(stream, config.group, consumer.metrics))
            print_status(f"serving metrics on port {served.server_port}")
        with supervisor.signals_recorded():
            print_status(f"consumer {consumer.worker_name} of {stream}/{config.group}")
            await _run(consumer, group, burst=burst)
        done = consumer.metrics()
        print_status(f"ended: {done.total_acked} done, {done.total_errors} failed, {done.total_dlq} dead-lettered")


async def _run(consumer: StreamConsumer, group: ConsumerGroup, *, burst: bool) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_stop_when_idle(consumer, group)) if burst else None
            await consumer.run()
            if watching is not None:
                watching.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # a command prints one error, in one line


async def _stop_when_idle(consumer: StreamConsumer, group: ConsumerGroup) -> None:
    while True:
        if not await group.has_work():
            consumer.stop()
            return
        await asyncio.sleep(_POLL_S)
