"""Prometheus metrics of pipelines, from their events."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from penstock.errors import ConfigurationError
from penstock.events import Event, EventName

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ConfigurationError("metrics need prometheus-client: pip install 'penstock[metrics]'") from error

_COUNTERS = {
    "penstock_pipeline_batches": "Batches written to all sinks.",
    "penstock_pipeline_rows": "Entries read by these batches.",
    "penstock_pipeline_restarts": "Restarts after transient failures.",
    "penstock_pipeline_failures": "Failed runs.",
}
_GAUGES = {
    "penstock_pipeline_lag_entries": ("lag", "Entries not read yet."),
    "penstock_pipeline_batch_seconds": ("seconds", "Duration of the last batch in seconds."),
    "penstock_pipeline_catch_up_seconds": (
        "eta_s",
        "Estimated seconds until the pipeline has caught up, given the current inflow.",
    ),
}


class PipelineMetrics(Collector):
    """Counts the events of pipelines in this process; pass it as `on_event`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._broken: dict[tuple[str, str, str], int] = defaultdict(int)
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}

    def __call__(self, event: Event) -> None:
        """Count an event."""
        name, fields = event.group, event.fields
        with self._lock:
            if event.name is EventName.BATCH_COMMITTED:
                self._counts["penstock_pipeline_batches", name] += 1
                self._counts["penstock_pipeline_rows", name] += int(str(fields["rows"]))
                self._last[name] = time.time(), dict(fields)
            elif event.name is EventName.RULE_BROKEN:
                self._broken[name, str(fields["rule"]), str(fields["action"])] += int(str(fields["count"]))
            elif event.name is EventName.TRYING_AGAIN:
                self._counts["penstock_pipeline_restarts", name] += 1
            elif event.name is EventName.FAILED:
                self._counts["penstock_pipeline_failures", name] += 1

    def collect(self) -> Iterable[Any]:
        """Yield the metrics, without gauges whose value is unknown."""
        with self._lock:
            counts, broken, last = dict(self._counts), dict(self._broken), dict(self._last)
        for metric, meaning in _COUNTERS.items():
            counter = CounterMetricFamily(metric, meaning, labels=["pipeline"])
            for (each, name), count in counts.items():
                if each == metric:
                    counter.add_metric([name], count)
            yield counter
        rules = CounterMetricFamily(
            "penstock_pipeline_rule_broken", "Rows that violated a rule.", labels=["pipeline", "rule", "action"]
        )
        for labels, count in broken.items():
            rules.add_metric(list(labels), count)
        yield rules
        for metric, (key, meaning) in _GAUGES.items():
            gauge = GaugeMetricFamily(metric, meaning, labels=["pipeline"])
            for name, (_, fields) in last.items():
                if fields[key] is not None:
                    gauge.add_metric([name], fields[key])
            yield gauge
        moment = GaugeMetricFamily(
            "penstock_pipeline_last_batch_timestamp_seconds",
            "Unix time at which the last batch finished.",
            labels=["pipeline"],
        )
        for name, (time_s, _) in last.items():
            moment.add_metric([name], time_s)
        yield moment
