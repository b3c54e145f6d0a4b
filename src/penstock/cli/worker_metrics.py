"""Prometheus metrics of a worker or consumer process, and the server that shows metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.counters import BUCKETS_S, WorkerTally
from penstock.errors import ConfigurationError
from penstock.model import ConsumerMetrics

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ConfigurationError("metrics need prometheus-client: pip install 'penstock[metrics]'") from error


class WorkerCollector(Collector):
    """The counts of a worker in this process."""

    def __init__(self, tally: WorkerTally) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Any]:
        """Yield the metrics."""
        tally = self._tally
        tasks = CounterMetricFamily("worker_task_total", "Runs by outcome.", labels=["kind", "status"])
        failed = CounterMetricFamily("handler_fail_total", "Runs that failed.", labels=["kind"])
        durations = HistogramMetricFamily("handler_duration_seconds", "How long handlers ran.", labels=["kind"])
        for kind, counts in list(tally.kinds.items()):
            for outcome, number in counts.outcomes.items():
                tasks.add_metric([kind, outcome], number)
            failed.add_metric([kind], sum(counts.outcomes[name] for name in ("retry", "dead", "error")))
            durations.add_metric([kind], *_histogram(counts.buckets, counts.seconds))
        unsaved = CounterMetricFamily("result_backend_fail_total", "Failed attempts to save results.")
        unsaved.add_metric([], tally.backend_failures)
        running = GaugeMetricFamily("penstock_worker_running_tasks", "Handlers running now.", value=tally.running)
        uptime = GaugeMetricFamily(
            "worker_runtime_seconds", "Seconds since the worker started.", value=time.time() - tally.started_s
        )
        return [tasks, failed, durations, unsaved, running, uptime]


class ConsumerCollector(Collector):
    """The counts of a consumer of a stream in this process."""

    def __init__(self, stream: str, group: str, read: Callable[[], ConsumerMetrics]) -> None:
        self._labels, self._read = [stream, group], read

    def collect(self) -> Iterable[Any]:
        """Yield the metrics."""
        found = self._read()
        messages = CounterMetricFamily(
            "penstock_consumer_messages", "Messages by outcome.", labels=["stream", "group", "event"]
        )
        for event in ("read", "acked", "errors", "retried", "reclaimed", "handed_back", "lease_lost", "missing"):
            messages.add_metric([*self._labels, event], getattr(found, f"total_{event}"))
        messages.add_metric([*self._labels, "dead"], found.total_dlq)
        return [messages]


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
        raise ConfigurationError(f"cannot serve metrics on {host} port {port}: {reason}") from error
