"""Prometheus metrics of queues and workers, by the names that dashboards of such queues know."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.counters import BUCKETS_S, WorkerTally
from penstock.errors import ConfigurationError, PenstockError
from penstock.sync.tasks import RedisTaskQueue
from penstock.tasks.listed import LaneGauges, QueueGauges

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ConfigurationError("metrics need prometheus-client: pip install 'penstock[metrics]'") from error


_MOST_LANES = 100


class QueueCollector(Collector):
    """The numbers of queues, asked for whenever somebody looks."""

    def __init__(self, queues: Iterable[RedisTaskQueue]) -> None:
        self._queues = list(queues)

    def collect(self) -> Iterable[Any]:
        """Yield the metrics; a server that is away is told by `queue_up`."""
        up = GaugeMetricFamily("queue_up", "Whether Redis answered for the queue.", labels=["queue"])
        found: list[QueueGauges] = []
        for queue in self._queues:
            try:
                found.append(queue.gauges())
                up.add_metric([queue.name], 1)
            except PenstockError:
                up.add_metric([queue.name], 0)
        yield up
        yield from _queue_metrics(found)


def _queue_metrics(found: list[QueueGauges]) -> Iterable[Any]:
    pending = GaugeMetricFamily("queue_pending_total", "Open tasks.", labels=["stream", "kind"])
    idle = GaugeMetricFamily(
        "queue_pending_idle_max_seconds", "Longest time since a task in hand was renewed.", labels=["stream"]
    )
    acked = CounterMetricFamily("queue_ack_total", "Tasks that were done.", labels=["kind", "queue"])
    dead = CounterMetricFamily("queue_dead_total", "Tasks that were given up.", labels=["kind", "queue"])
    trimmed = CounterMetricFamily(
        "queue_dead_trimmed_total", "Dead letters that were removed beyond their limits.", labels=["queue"]
    )
    sizes = GaugeMetricFamily("queue_size", "Tasks by state.", labels=["queue", "state"])
    for queue in found:
        for kind, number in queue.open_by_kind.items():
            pending.add_metric([queue.stream, kind], number)
        for stream, idle_s in _idle_by_stream(queue.lanes):
            idle.add_metric([stream], idle_s)
        for family, numbers in ((acked, queue.acked), (dead, queue.dead)):
            for kind, number in numbers.items():
                family.add_metric([kind, queue.name], number)
        trimmed.add_metric([queue.name], queue.dead_trimmed)
        states = {
            "open": queue.open, "scheduled": queue.scheduled, "dead": queue.dead_letters,
            "in_hand": sum(lane.in_hand for lane in queue.lanes), "waiting": sum(lane.waiting for lane in queue.lanes),
        }  # fmt: skip
        for state, number in states.items():
            sizes.add_metric([queue.name, state], number)
    return [pending, idle, acked, dead, trimmed, sizes]


def _idle_by_stream(lanes: Sequence[LaneGauges]) -> list[tuple[str, float]]:
    # A lane may be there for a kind that somebody made up: a label each would be more than a Prometheus wants.
    ordered = sorted(lanes, key=lambda lane: (len(lane.stream), lane.stream))
    named = [(lane.stream, lane.idle_max_s) for lane in ordered[:_MOST_LANES]]
    others = [lane.idle_max_s for lane in ordered[_MOST_LANES:]]
    return [*named, ("other", max(others))] if others else named


class WorkerCollector(Collector):
    """The counts of a worker in this process."""

    def __init__(self, tally: WorkerTally) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Any]:
        """Yield the metrics."""
        tally = self._tally
        tasks = CounterMetricFamily("worker_task_total", "Runs by outcome.", labels=["kind", "status"])
        failed = CounterMetricFamily("handler_fail_total", "Runs that failed.", labels=["kind"])
        took = HistogramMetricFamily("handler_duration_seconds", "How long handlers ran.", labels=["kind"])
        for kind, counts in list(tally.kinds.items()):
            for outcome, number in counts.outcomes.items():
                tasks.add_metric([kind, outcome], number)
            failed.add_metric([kind], sum(counts.outcomes[name] for name in ("retry", "dead", "error")))
            took.add_metric([kind], *_histogram(counts.buckets, counts.seconds))
        unsaved = CounterMetricFamily("result_backend_fail_total", "Times that results could not be saved.")
        unsaved.add_metric([], tally.backend_failures)
        running = GaugeMetricFamily("worker_running_tasks", "Handlers that run now.", value=tally.running)
        uptime = GaugeMetricFamily("worker_runtime_seconds", "Age of the worker.", value=time.time() - tally.started_s)
        return [tasks, failed, took, unsaved, running, uptime]


def _histogram(buckets: list[int], total_s: float) -> tuple[list[tuple[str, float]], float]:
    rows, seen = [], 0
    for limit, number in zip([*map(str, BUCKETS_S), "+Inf"], list(buckets), strict=True):
        seen += number
        rows.append((limit, float(seen)))
    return rows, total_s


def serve(host: str, port: int, *collectors: Collector) -> Any:
    """Serve metrics; return the server and its thread, or raise ConfigurationError if the address cannot be used."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    try:
        return start_http_server(port, host, registry=registry)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"{host} port {port} for metrics cannot be used: {reason}") from error
